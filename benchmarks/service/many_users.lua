-- wrk: the same check for one user after the other; all requests are made beforehand.
-- arguments: path, users, body with {user} in place of the name
local requests, users, number = {}, 0, 0

function init(arguments)
  users = tonumber(arguments[2])
  local headers = {["content-type"] = "application/json"}
  for user = 0, users - 1 do
    local body = string.gsub(arguments[3], "{user}", "user-" .. user)
    requests[user] = wrk.format("POST", arguments[1], headers, body)
  end
end

function request()
  number = number + 1
  return requests[number % users]
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  local line = '{"requests":%d,"seconds":%f,"failed":%d}\n'
  io.write(string.format(line, summary.requests, summary.duration / 1e6, failed))
end
