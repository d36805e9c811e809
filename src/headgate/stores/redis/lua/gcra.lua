-- Twin of core/gcra.py. State: tat, fraction, limit, mark.
local function gcra(state, quota, cost, now, _, since)
  local gain, unit, full = quota.gain, quota.unit, quota.full
  local debt, mark = 0, 0
  if state then
    local tat, fraction, written_under
    tat, fraction, written_under, mark = unpack_from('<dddB', state)
    debt = tat - now
    if debt < 0 then
      debt = 0
    elseif written_under ~= quota.limit then
      local then_gain = reduced(written_under, quota.window)
      debt = math.min(debt, (2^51 - 2^51 % then_gain) / then_gain) * then_gain + fraction
      debt = carried_over(debt, 0, written_under, quota)
      fraction = debt % gain
      state = pack('<dddB', now + (debt - fraction) / gain, fraction, quota.limit, mark)
      return gcra(state, quota, since and 0 or cost, now)
    elseif gain ~= 1 then
      local beyond = full + math.min(quota.window * gain, 2^51)
      debt = debt <= (beyond - beyond % gain) / gain and debt * gain + fraction or beyond + 1
    end
  end
  local after = debt + cost * unit
  if since then after = math.min(debt, after + (now - since) * gain) end
  local room = full - after
  if room >= 0 or cost < 0 then
    if after < 0 then after, room = 0, full end
    local remaining, pressure = (room - room % unit) / unit, 0
    if remaining < 0 then remaining = 0 end
    if remaining >= quota.calm then mark = 0 else mark, pressure = judged(quota, mark, remaining, cost) end
    local fraction = after % gain
    local wait = (after - fraction) / gain
    state = pack('<dddB', now + wait, fraction, quota.limit, mark)
    return state, 1, remaining, 0, fraction > 0 and wait + 1 or wait, pressure, 0
  end
  if debt > full + math.min(quota.window * gain, 2^51) then
    local fraction = full % gain
    return gcra(pack('<dddB', now + (full - fraction) / gain, fraction, quota.limit, mark), quota, cost, now)
  end
  local left = math.max(0, full - debt)
  return state, 0, (left - left % unit) / unit, (-room + room % gain) / gain, (debt + -debt % gain) / gain, 2, 0
end
return gcra
