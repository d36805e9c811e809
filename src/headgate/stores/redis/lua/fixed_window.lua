-- Twin of core/fixed_window.py. State: end, used, mark.
local fixed_window
fixed_window = function(state, quota, cost, now)
  local window, limit = quota.window, quota.limit
  local left, used, mark = window - now % window, 0, 0
  local finish = now + left
  if state and state[1] > now then
    finish, used, mark = state[1], state[2], state[3]
    left = finish - now
    if left > 2 * window then
      return fixed_window({now + window - now % window, used, mark}, quota, cost, now)
    elseif left > window then
      return held(left - window, fixed_window(state, quota, cost, finish - window))
    end
  end
  local after = used + cost
  if after <= limit or cost < 0 then
    if after <= 0 then after, left = 0, 0 end
    local remaining, pressure = max(0, limit - after), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    return {finish, after, mark}, true, remaining, 0, left, pressure, 0
  end
  return state, false, max(0, limit - used), left, left, THROTTLED, 0
end
steps.fw = fixed_window

void_at.fw = function(state)
  return state[2] > 0 and state[1] or 0
end
