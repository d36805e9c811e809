-- Twin of core/fixed_window.py. State: end, used, mark.
local function fixed_window(state, quota, cost, now, _, since)
  local window, limit = quota.window, quota.limit
  local left, used, mark = window - now % window, 0, 0
  local finish = now + left
  if state then
    local counted_until, counted, marked = unpack_from('<ddB', state)
    if counted_until > now then
      finish, used, mark = counted_until, counted, marked
      left = finish - now
      if left > 2 * window then
        return fixed_window(pack('<ddB', now + window - now % window, used, mark), quota, cost, now, nil, since)
      elseif left > window then
        return held(left - window, fixed_window(state, quota, cost, finish - window, nil, since))
      end
    end
  end
  if since and since < finish - window then cost = 0 end  -- it was charged to a window that is over
  local after = used + cost
  if after <= limit or cost < 0 then
    if after <= 0 then after, left = 0, 0 end
    local remaining, pressure = limit - after, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    return pack('<ddB', finish, after, mark), 1, remaining, 0, left, pressure, 0
  end
  return state, 0, math.max(0, limit - used), left, left, 2, 0
end
return fixed_window
