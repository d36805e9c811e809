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

-- The transition of a state that owes something, and was written under another limit.
local function changed(gcra, state, quota, cost, now, since)
  local tat, fraction, written_under, kept, mark = unpack_from('<ddddB', state)
  local pressed = mark % 2
  local wait, scaled = rates().wait, rates().scaled
  local gain, per, unit = rates().rate(written_under, quota.window, (mark - pressed) / 2)
  local before = tat
  tat, fraction = mended(tat, fraction, now, kept, quota.window, gain, per, unit)
  if tat ~= before then state = pack('<ddddB', tat, fraction, written_under, kept, mark) end
  local debt = owed(tat - now, fraction, gain, per)
  if since then cost = 0 end  -- it may have been charged under yet another limit
  if cost < 0 then debt = math.max(0, debt - math.min(-cost, (debt + -debt % unit) / unit) * unit) end
  local taken = (debt + -debt % unit) / unit
  if cost > 0 and cost <= quota.capacity - taken then
    local whole, rest = scaled(rates().carried(debt, unit, quota.unit), quota.per, quota.gain)
    local state = pack('<ddddB', now + whole, rest, quota.limit, quota.capacity, quota.low + pressed)
    return gcra(state, quota, cost, now)
  end
  local remaining = math.max(0, quota.capacity - taken)
  local whole, rest = scaled(debt, per, gain)
  local reset = rest > 0 and whole + 1 or whole
  if cost > 0 then
    return state, 0, remaining, wait(debt - (quota.capacity - cost) * unit, gain, per), reset, 2, 0
  end
  local marked, pressure = judged(quota, pressed, remaining, cost)
  if cost < 0 then state = pack('<ddddB', now + whole, rest, written_under, kept, mark - pressed + marked) end
  return state, 1, remaining, 0, reset, pressure, 0
end

local function gcra(state, quota, cost, now, _, since)
  local gain, per, unit, full = quota.gain, quota.per, quota.unit, quota.full
  local debt, mark, kept = 0, 0, 0
  if state then
    local tat, fraction, written_under
    tat, fraction, written_under, kept, mark = unpack_from('<ddddB', state)
    debt = tat - now
    mark = mark - quota.low
    if debt < 0 then
      debt, fraction, mark = 0, 0, mark % 2
    elseif written_under ~= quota.limit or mark < 0 or mark > 1 then
      return changed(gcra, state, quota, cost, now, since)
    elseif debt > quota.window or gain * quota.window > 2^51 then
      local tat_now, fraction_now = mended(tat, fraction, now, kept, quota.window, gain, per, unit)
      if tat_now ~= tat then
        state = pack('<ddddB', tat_now, fraction_now, quota.limit, kept, quota.low + mark)
        return gcra(state, quota, cost, now, nil, since)
      end
    end
    if per > 1 then debt = owed(debt, fraction, gain, per) else debt = debt * gain + fraction end
  end
  local after = debt + cost * unit
  if since then after = math.min(debt, after + rates().scaled(now - since, gain, per)) end
  local room = full - after
  if room >= 0 or cost <= 0 then
    if after < 0 then after, room = 0, full end
    local remaining, pressure = (room - room % unit) / unit, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    local fraction, whole
    if per == 1 then
      fraction = after % gain
      whole = (after - fraction) / gain
    else
      whole, fraction = rates().scaled(after, per, gain)
    end
    state = pack('<ddddB', now + whole, fraction, quota.limit, room >= 0 and quota.capacity or kept, quota.low + mark)
    return state, 1, remaining, 0, fraction > 0 and whole + 1 or whole, pressure, 0
  end
  local left = math.max(0, full - debt)
  local remaining = (left - left % unit) / unit
  if per == 1 then return state, 0, remaining, (-room + room % gain) / gain, (debt + -debt % gain) / gain, 2, 0 end
  return state, 0, remaining, rates().wait(-room, gain, per), rates().wait(debt, gain, per), 2, 0
end
return gcra
