-- wrk: the same request for one user after the other, for users drawn by a Zipf law, or for users and paths at random.
-- arguments: path, body with {user}, {ip} and {path}, turn, zipf or random, how many users, how many paths, the exponent
local url, body, users, paths
local requests, weights, number = {}, {}, 0

local function filled(user, path)
  local ip = string.format("10.%d.%d.%d", math.floor(user / 65536) % 256, math.floor(user / 256) % 256, user % 256)
  local text = string.gsub(body, "{user}", "user-" .. user)
  text = string.gsub(text, "{ip}", ip)
  text = string.gsub(text, "{path}", "/api/v1/orders/" .. path)
  return wrk.format("POST", url, nil, text)
end

local function of(user)
  local known = requests[user]
  if not known then
    known = filled(user, user % paths)
    requests[user] = known
  end
  return known
end

local function in_turn()
  number = number + 1
  return of(number % users)
end

local function drawn()
  local low, high, sought = 0, users - 1, math.random() * weights[users - 1]
  while low < high do
    local middle = math.floor((low + high) / 2)
    if weights[middle] < sought then low = middle + 1 else high = middle end
  end
  return of(low)
end

local function at_random()
  return filled(math.random(0, users - 1), math.random(0, paths - 1))
end

function init(arguments)
  url, body, users, paths = arguments[1], arguments[2], tonumber(arguments[4]), tonumber(arguments[5])
  wrk.headers["content-type"] = "application/json"
  math.randomseed(os.time())
  request = ({turn = in_turn, zipf = drawn, random = at_random})[arguments[3]]
  local sum, exponent = 0, tonumber(arguments[6])
  for user = 0, request == drawn and users - 1 or -1 do
    sum = sum + (user + 1) ^ -exponent
    weights[user] = sum
  end
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  local line = '{"requests":%d,"seconds":%f,"failed":%d}\n'
  io.write(string.format(line, summary.requests, summary.duration / 1e6, failed))
end
