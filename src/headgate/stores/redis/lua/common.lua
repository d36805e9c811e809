-- What the algorithms share. Each of them is the twin of the file of the same name in headgate/core and keeps its laws:
-- whole numbers below 2^53, time as an argument, one function per algorithm. Its file returns that function.
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

-- limit / window in lowest terms: gain fractions come back per microsecond, unit of them are one unit of cost.
local function reduced(limit, window)
  local divisor, rest = limit, window
  while rest > 0 do divisor, rest = rest, divisor % rest end
  return limit / divisor, window / divisor
end

-- `used`, as of `elapsed` ago under the limit `written_under`, in the fractions of `quota`, as of now.
local function carried_over(used, elapsed, written_under, quota)
  local then_gain, then_unit = reduced(written_under, quota.window)
  if then_gain > 0 then
    used = elapsed <= (2^51 - 2^51 % then_gain) / then_gain and math.max(0, used - elapsed * then_gain) or 0
  elseif elapsed >= quota.window then
    used = 0
  end
  local unit, rest = quota.unit, used % then_unit
  local entire, most = (used - rest) / then_unit, (2^51 - 2^51 % unit) / unit
  if entire >= most then return most * unit end
  -- rest / then_unit of a unit, as parts / of_parts: rounded up, and coarse enough for the product to stay exact
  local coarsest = math.min(then_unit, most)
  local coarse = (then_unit + -then_unit % coarsest) / coarsest
  local parts, of_parts = (rest + -rest % coarse) / coarse, (then_unit - then_unit % coarse) / coarse
  local product = parts * unit
  return entire * unit + math.min(unit, (product + -product % of_parts) / of_parts)
end

-- The mark to keep and the pressure to tell, for what is below the calm threshold as well as above it.
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
