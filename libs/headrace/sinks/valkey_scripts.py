"""The scripts of a Valkey sink. Pure.

A script is never interrupted and no other client's command runs in between. It is not rolled back
either, so it checks everything before its first write. `redis.call` is the name that Valkey and
Redis both know.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and the name under which the server keeps it."""

    text: str

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


FENCED = b"FENCED"
BEHIND = b"BEHIND"
WRONG_TYPE = b"WRONGTYPE "

# KEYS[1]: the sink's own hash. Returns the new session's number, and the position.
OPEN = """
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
return {epoch, redis.call('HGET', KEYS[1], 'position')}
"""

# KEYS[1]: the sink's own hash. ARGV: the session's number, the position that is stored, the
# position to store, and commands in MessagePack. A command is a list; the first word is one of
# Valkey's, or one of `special`.
WRITE = Script(
    """
local held = redis.call('HMGET', KEYS[1], 'epoch', 'position')
if held[1] ~= ARGV[1] then return 'FENCED' end
if (held[2] or '') ~= ARGV[2] then return 'BEHIND' end
local commands = cmsgpack.unpack(ARGV[4])

local types = {
  XADD = 'stream', HSET = 'hash', HDEL = 'hash', MOVE = 'hash', SADD = 'set', SREM = 'set',
  CLEAR = 'set',
}
local seen = {}
for _, command in ipairs(commands) do
  local wanted = types[command[1]]
  local key = command[2]
  if wanted and not seen[key] then
    local found = redis.call('TYPE', key).ok
    if found ~= wanted and found ~= 'none' then return 'WRONGTYPE ' .. key end
    seen[key] = true
  end
end

local function each(index, act)
  for _, member in ipairs(redis.call('SMEMBERS', index)) do act(index .. ':' .. member) end
end

local special = {}

function special.CLEAR(command)
  each(command[2], function(row) redis.call('UNLINK', row) end)
  redis.call('DEL', command[2])
end

-- {MOVE, row, its new name}: an update that changes a key keeps columns that it does not contain.
function special.MOVE(command)
  if redis.call('EXISTS', command[2]) == 1 then redis.call('RENAME', command[2], command[3]) end
end

function special.DROP(command)
  each(command[2], function(row) redis.call('HDEL', row, command[3]) end)
end

function special.FILL(command)
  each(command[2], function(row) redis.call('HSETNX', row, command[3], command[4]) end)
end

function special.RENAME(command)
  each(command[2], function(row)
    local value = redis.call('HGET', row, command[3])
    if value then
      redis.call('HSET', row, command[4], value)
      redis.call('HDEL', row, command[3])
    end
  end)
end

-- A schema event may come again: {SCHEMA, table, version, changes}.
function special.SCHEMA(command)
  local field = 'version:' .. command[2]
  if redis.call('HGET', KEYS[1], field) == command[3] then return end
  for _, change in ipairs(command[4]) do special[change[1]](change) end
  redis.call('HSET', KEYS[1], field, command[3])
end

for _, command in ipairs(commands) do
  local act = special[command[1]]
  if act then act(command) else redis.call(unpack(command)) end
end
redis.call('HSET', KEYS[1], 'position', ARGV[3])
return 'OK'
"""
)
