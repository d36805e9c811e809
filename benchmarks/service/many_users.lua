-- wrk: the same request for one user after the other, made beforehand, or for users and paths at random.
-- arguments: path, body with {user}, {ip} and {path}, turn or random, how many users, how many paths
local url, body, users, paths
local requests, number = {}, 0

local function filled(user, path)
  local ip = string.format("10.%d.%d.%d", math.floor(user / 65536) % 256, math.floor(user / 256) % 256, user % 256)
  local text = string.gsub(body, "{user}", "user-" .. user)
  text = string.gsub(text, "{ip}", ip)
  text = string.gsub(text, "{path}", "/api/v1/orders/" .. path)
  return wrk.format("POST", url, nil, text)
end

local function in_turn()
  number = number + 1
  return requests[number % users]
end

local function at_random()
  return filled(math.random(0, users - 1), math.random(0, paths - 1))
end

function init(arguments)
  url, body, users, paths = arguments[1], arguments[2], tonumber(arguments[4]), tonumber(arguments[5])
  wrk.headers["content-type"] = "application/json"
  if arguments[3] == "random" then
    math.randomseed(os.time())
    request = at_random
  else
    for user = 0, users - 1 do
      requests[user] = filled(user, user % paths)
    end
    request = in_turn
  end
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  local line = '{"requests":%d,"seconds":%f,"failed":%d}\n'
  io.write(string.format(line, summary.requests, summary.duration / 1e6, failed))
end
