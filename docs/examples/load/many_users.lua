-- wrk: a check for each of 10,000 users in turn; all requests are encoded beforehand.
local requests, number = {}, 0
local body = '{"principal":{"user":"user-%d"},"endpoint":"/api/v1/orders","method":"POST"}'

function init()
  for user = 1, 10000 do
    requests[user] = wrk.format(
      "POST", "/api/v1/rate-limit/check", {["content-type"] = "application/json"}, string.format(body, user))
  end
end

function request()
  number = number % #requests + 1
  return requests[number]
end
