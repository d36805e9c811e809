-- Twin of core/sliding_window_counter.py. State: end, current, previous, mark.
local sliding_window_counter
sliding_window_counter = function(state, quota, cost, now)
  local window, limit, grain = quota.window, quota.limit, quota.every
  local grains = window / grain
  local current, previous, mark = 0, 0, 0
  local left = window - now % window
  local finish = now + left
  if state then
    finish, current, previous, mark = state[1], state[2], state[3], state[4]
    left = finish - now
    if left <= 0 then
      previous = left > -window and current or 0
      current = 0
      left = window - now % window
      finish = now + left
    elseif left > 2 * window then
      local pulled = {now + window - now % window, min(current + previous, floor(EXACT / grains)), 0, mark}
      return sliding_window_counter(pulled, quota, cost, now)
    elseif left > window then
      return held(left - window, sliding_window_counter(state, quota, cost, finish - window))
    end
  end
  local overlap = ceil(left / grain)
  local spare = (limit - current - cost) * grains
  local room = spare - previous * overlap
  if room >= 0 or cost < 0 then
    current = current + cost
    if current < 0 then
      previous, current = max(0, previous + current), 0
      room = limit * grains - previous * overlap
    end
    local remaining, pressure = max(0, floor(room / grains)), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    local reset = current > 0 and left + window or previous > 0 and left or 0
    return {finish, current, previous, mark}, true, remaining, 0, reset, pressure, 0
  end
  local remaining = max(0, floor((room + cost * grains) / grains))
  local retry
  if spare >= 0 then
    retry = left - floor(spare / previous) * grain
  else
    retry = left + window - floor((limit - cost) * grains / current) * grain
  end
  return state, false, remaining, retry, current > 0 and left + window or left, THROTTLED, 0
end
steps.swc = sliding_window_counter

void_at.swc = function(state, quota)
  if state[2] > 0 then return state[1] + quota.window end
  return state[3] > 0 and state[1] or 0
end
