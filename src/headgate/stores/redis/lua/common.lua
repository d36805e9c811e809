-- What the algorithms share. Each of them is the twin of the file of the same name in headgate/core, and keeps its laws:
-- whole numbers below 2^53, time as an argument, one function per algorithm.
--
--   step(state, quota, cost, now) -> state, allowed, remaining, retry_after, reset_after, pressure, delay
--
-- `state` is nil or an array of numbers; the very same table comes back where nothing changed. Times are microseconds.
-- `pressure` is 0 normal, 1 warning, 2 throttled. `quota` has the fields that plan.lua reads from ARGV.
local EXACT = 2251799813685248  -- 2^51
local NORMAL, WARNING, THROTTLED = 0, 1, 2
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

local steps, void_at = {}, {}

local function gcd(a, b)
  while b > 0 do a, b = b, a % b end
  return a
end

-- limit / window in lowest terms: gain fractions come back per microsecond, unit of them are one unit of cost.
local function reduced(limit, window)
  local divisor = gcd(limit, window)
  return limit / divisor, window / divisor
end

-- `used`, as of `elapsed` ago under the limit `written_under`, in the fractions of `quota`, as of now.
local function carried_over(used, elapsed, written_under, quota)
  local then_gain, then_unit = reduced(written_under, quota.window)
  if then_gain > 0 then
    used = elapsed <= floor(EXACT / then_gain) and max(0, used - elapsed * then_gain) or 0
  elseif elapsed >= quota.window then
    used = 0
  end
  local unit = quota.unit
  local entire, most = floor(used / then_unit), floor(EXACT / unit)
  if entire >= most then return most * unit end
  -- used % then_unit, as parts / of_parts of a unit: rounded up, and coarse enough for the product to stay exact
  local coarse = ceil(then_unit / min(then_unit, most))
  local parts, of_parts = ceil(used % then_unit / coarse), floor(then_unit / coarse)
  return entire * unit + min(unit, ceil(parts * unit / of_parts))
end

-- The mark to keep and the pressure to tell, for what is below the calm threshold as well as above it.
local function judged(quota, mark, remaining, cost)
  if remaining >= quota.calm then return 0, NORMAL end
  if remaining == 0 then return quota.warn > 0 and 1 or 0, THROTTLED end
  if remaining < quota.warn or (mark == 1 and remaining + cost < quota.calm) then return 1, WARNING end
  return 0, NORMAL
end

-- An outcome computed `lag` in the future, for a clock that fell behind the state, as seen from now.
local function held(lag, state, allowed, remaining, retry, reset, pressure, delay)
  if retry > 0 then retry = retry + lag end
  if reset > 0 then reset = reset + lag end
  if delay > 0 then delay = delay + lag end
  return state, allowed, remaining, retry, reset, pressure, delay
end
