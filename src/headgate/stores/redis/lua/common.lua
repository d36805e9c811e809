-- What the algorithms share. Each of them is the twin of the file of the same name in headgate/core and keeps its laws:
-- whole numbers below 2^53, time as an argument, one function per algorithm. Its file returns that function, the length
-- of its state and, if a key holds more than that and the journal of plan.lua, a table of functions for it: `load`,
-- `save`, `marked` and `unmarked` of sliding_window_log.lua.
--
--   step(state, quota, cost, now, key, since) -> state, allowed, remaining, retry_after, reset_after, pressure, delay
--
-- `state` is what the key holds, packed, or false; the very same string comes back where nothing changed. `quota` has
-- the fields that plan.lua unpacks. Times are microseconds. `allowed` is 1 or 0; `pressure` is 0 normal, 1 warning,
-- 2 throttled. `reset_after` is also how long the state means something.
--
-- With `since`, a cost below zero takes back a charge made at that time, and not more than surely still counts of it:
-- afterwards there is never more left than had the charge not been made. In doubt the charge stays.
--
-- Calls cost more than arithmetic here: floor(a / b) is written (a - a % b) / b, and ceil(a / b) as (a + -a % b) / b.
-- And each call of the script pays for every local that a function refers to: constants are literals, 2^51 among them.

-- Arithmetic that is needed where a limit has changed, or is too odd to be counted exactly; see core/numbers.py. It is
-- made when it is first needed.
local made
local function rates()
  if made then return made end
  made = {}

  -- floor(value * by / over) and the rest. Where the product leaves 53 bits, value is below 2^53, by and over are at
  -- most 2^49, and it is multiplied and divided digit by digit. A result above 2^52 is only a bound.
  local function scaled(value, by, over)
    local product = value * by
    if product < 2^53 or over == 1 then
      local rest = product % over
      return (product - rest) / over, rest
    end
    local rest, part, quotient, place = by % over, 0, 0, 2^51
    local whole, left = (by - rest) / over * value, value
    while place >= 1 do
      local below = left % place
      part = part * 8 + (left - below) / place * rest
      local kept = part % over
      quotient, part, left, place = quotient * 8 + (part - kept) / over, kept, below, place / 8
    end
    return whole + quotient, part
  end
  made.scaled = scaled

  -- How a limit counts that is this fine: gain, per and unit.
  function made.rate(limit, window, fine)
    if limit == 0 then return 0, window, 1 end
    if fine > 0 then return limit * 2^(fine - 1), window, 2^(fine - 1) end
    local divisor, rest = limit, window
    while rest > 0 do divisor, rest = rest, divisor % rest end
    return limit / divisor, 1, window / divisor
  end

  -- After how long that many fractions have come back, and how many of those used are left after `elapsed`.
  function made.wait(fractions, gain, per)
    if gain == 0 then return fractions > 0 and per or 0 end
    local whole, rest = scaled(fractions, per, gain)
    return rest > 0 and whole + 1 or whole
  end
  function made.left_of(used, gain, per, elapsed)
    if gain == 0 then return elapsed < per and used or 0 end
    return math.max(0, used - scaled(elapsed, gain, per))
  end

  -- `used` fractions of `unit`, as fractions of which `other` make one unit, rounded up.
  function made.carried(used, unit, other)
    local rest = used % unit
    local part, remainder = scaled(rest, other, unit)
    return (used - rest) / unit * other + (remainder > 0 and part + 1 or part)
  end
  return made
end

-- The mark to keep and the pressure, for what is below the calm threshold as well as above it.
local function judged(quota, mark, remaining, cost)
  if remaining >= quota.calm then return 0, 0 end
  if remaining == 0 then return quota.warn > 0 and 1 or 0, 2 end
  if remaining < quota.warn or (mark == 1 and remaining + cost < quota.calm) then return 1, 1 end
  return 0, 0
end

-- An outcome computed `lag` in the future, for a clock that fell behind the state, as seen from now.
local function held(lag, state, allowed, remaining, retry, reset, pressure, delay)
  if retry > 0 then retry = retry + lag end
  if reset > 0 then reset = reset + lag end
  if delay > 0 then delay = delay + lag end
  return state, allowed, remaining, retry, reset, pressure, delay
end
