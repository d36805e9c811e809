-- Twin of core/gcra.py. State: tat, fraction, limit, mark.
local gcra
gcra = function(state, quota, cost, now)
  local gain, unit, limit = quota.gain, quota.unit, quota.limit
  local full = quota.capacity * unit
  local beyond = full + min(quota.window * gain, EXACT)
  local debt, mark = 0, 0
  if state then
    mark = state[4]
    local wait = state[1] - now
    if wait < 0 then
      debt = 0
    elseif state[3] ~= limit then
      local then_gain = reduced(state[3], quota.window)
      debt = min(wait, floor(EXACT / then_gain)) * then_gain + state[2]
      debt = carried_over(debt, 0, state[3], quota)
      return gcra({now + floor(debt / gain), debt % gain, limit, mark}, quota, cost, now)
    else
      debt = (gain == 1 or wait <= floor(beyond / gain)) and wait * gain + state[2] or beyond + 1
    end
  end
  local after = debt + cost * unit
  local room = full - after
  if room >= 0 or cost < 0 then
    if after < 0 then after, room = 0, full end
    local remaining, pressure = max(0, floor(room / unit)), nil
    mark, pressure = judged(quota, mark, remaining, cost)
    return {now + floor(after / gain), after % gain, limit, mark}, true, remaining, 0, ceil(after / gain), pressure, 0
  end
  if debt > beyond then
    return gcra({now + floor(full / gain), full % gain, limit, mark}, quota, cost, now)
  end
  return state, false, max(0, floor((full - debt) / unit)), ceil(-room / gain), ceil(debt / gain), THROTTLED, 0
end
steps.gcra = gcra

void_at.gcra = function(state)
  return state[2] > 0 and state[1] + 1 or state[1]
end
