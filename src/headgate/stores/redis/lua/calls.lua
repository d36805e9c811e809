-- What every part of the script calls.
local call, pack, unpack_from = redis.call, struct.pack, struct.unpack
local format, concat = string.format, table.concat
