-- Twin of core/gcra.py. State: tat, fraction, limit, capacity, mark.

-- What a key owes whose TAT is `ahead`.
local function owed(ahead, fraction, gain, per)
  local whole, rest = rates().scaled(ahead, gain, per)
  rest = rest + fraction
  return whole + (rest + -rest % per) / per
end

-- The TAT and its fraction, if they are not so far ahead that the clock has made a mistake; else those of a full debt.
local function mended(tat, fraction, now, capacity, window, gain, per, unit)
  local lag = per == 1 and math.min(window, (2^51 - 2^51 % gain) / gain) or window
  if tat - now <= rates().wait(capacity * unit, gain, per) + lag then return tat, fraction end
  local whole, rest = rates().scaled(capacity * unit, per, gain)
  return now + whole, rest
end

-- The transition of any state, whatever limit it was written under, and of any cost.
local function any_state(state, quota, cost, now, _, since)
  local limit, capacity = quota.limit, quota.capacity
  local tat, fraction, written_under, capacity_then, mark = now, 0, limit, capacity, quota.low
  if state then tat, fraction, written_under, capacity_then, mark = unpack_from('<ddddB', state) end
  if tat < now then tat, fraction, written_under, capacity_then, mark = now, 0, limit, capacity, quota.low end
  local scaled, gain, per, unit = rates().scaled, rates().rate(written_under, quota.window, (mark - mark % 4) / 4)
  local read = tat
  tat, fraction = mended(tat, fraction, now, capacity_then, quota.window, gain, per, unit)
  if tat ~= read then state = pack('<ddddB', tat, fraction, written_under, capacity_then, mark) end
  local debt = owed(tat - now, fraction, gain, per)
  local pressed, carried = mark % 2, mark % 4 >= 2 and 2 or 0
  if debt > 0 and (written_under ~= limit or mark - mark % 4 ~= quota.low) then carried = 2 end
  if since and carried > 0 then cost = 0 end
  if cost < 0 then
    if since then
      debt = math.min(debt, debt + cost * unit + scaled(now - since, gain, per))
    else
      debt = debt + math.max(cost, -(debt + -debt % unit) / unit) * unit
    end
    debt = math.max(0, debt)
    local whole, rest = scaled(debt, per, gain)
    tat, fraction = now + whole, rest
  end
  local taken = (debt + -debt % unit) / unit
  if cost > 0 and cost <= capacity - taken then
    local after = rates().carried(debt, unit, quota.unit) + cost * quota.unit
    local remaining = capacity - (after + -after % quota.unit) / quota.unit
    local marked, pressure = judged(quota, pressed, remaining, cost)
    local whole, rest = scaled(after, quota.per, quota.gain)
    local written = pack('<ddddB', now + whole, rest, limit, capacity, quota.low + carried + marked)
    return written, 1, remaining, 0, rest > 0 and whole + 1 or whole, pressure, 0
  end
  local remaining, reset = math.max(0, capacity - taken), tat - now + (fraction > 0 and 1 or 0)
  if cost > 0 then
    local whole, rest = scaled((capacity - cost) * unit, per, gain)
    return state, 0, remaining, tat - now - whole + (rest < fraction and 1 or 0), reset, 2, 0
  end
  local marked, pressure = judged(quota, pressed, remaining, cost)
  if cost < 0 or debt == 0 then
    state = pack('<ddddB', tat, fraction, written_under, capacity_then, mark - pressed + marked)
  end
  return state, 1, remaining, 0, reset, pressure, 0
end

-- What is usual: an exact rate, and a state written under it.
local function gcra(state, quota, cost, now, _, since)
  local gain, unit, full = quota.gain, quota.unit, quota.full
  if cost < 0 or quota.per > 1 then return any_state(state, quota, cost, now, nil, since) end
  local debt, mark = 0, 0
  if state then
    local tat, fraction, written_under, capacity_then
    tat, fraction, written_under, capacity_then, mark = unpack_from('<ddddB', state)
    debt = tat - now
    if debt < 0 then
      debt, mark = 0, mark % 2
    elseif written_under ~= quota.limit or mark > 1 or capacity_then ~= quota.capacity
      or debt > quota.window or gain * quota.window > 2^51
    then
      return any_state(state, quota, cost, now, nil, since)
    else
      debt = debt * gain + fraction
    end
  end
  local after = debt + cost * unit
  local room = full - after
  if room >= 0 or cost == 0 then
    local remaining, pressure = (room - room % unit) / unit, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    local fraction = after % gain
    local whole = (after - fraction) / gain
    state = pack('<ddddB', now + whole, fraction, quota.limit, quota.capacity, mark)
    return state, 1, remaining, 0, fraction > 0 and whole + 1 or whole, pressure, 0
  end
  local left = math.max(0, full - debt)
  return state, 0, (left - left % unit) / unit, (-room + room % gain) / gain, (debt + -debt % gain) / gain, 2, 0
end
return gcra, 33
