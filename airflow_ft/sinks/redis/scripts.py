"""Scripts that the server runs atomically: each runs alone, and the append-only file has its writes as one transaction.

Redis rolls nothing back when a script fails, so each script looks at all keys before it writes the first.
"""

_APPLY = """
local PUT, DELETE = 0, 1  -- other rows are left alone
local AT_ONCE = 1000  -- arguments of a command: Lua unpacks some 8,000
-- Return the place of the first key of another type; nil if there is none.
local function unfit(rows)
  for i = 1, rows.count do
    if rows.kinds[i] == PUT or rows.kinds[i] == DELETE then
      local type = redis.call('TYPE', rows.keys[i]).ok
      if type ~= 'none' and type ~= rows.type then return i end
    end
  end
end
-- Call a command for a key with some arguments, in parts of an even number.
local function call(command, key, arguments)
  for first = 1, #arguments, AT_ONCE do
    redis.call(command, key, unpack(arguments, first, math.min(first + AT_ONCE - 1, #arguments)))
  end
end
local function apply(rows, number, from)
  for i = from, rows.count do
    local kind, key = rows.kinds[i], rows.keys[i]
    if kind == DELETE then
      redis.call('UNLINK', key)
    elseif kind == PUT and rows.type == 'string' then
      redis.call('SET', key, rows.columns[1][i])
    elseif kind == PUT then
      local put, gone = {}, {}
      if rows.version ~= '' then put[1], put[2] = rows.version, number end
      for j, field in ipairs(rows.fields) do
        local value = rows.columns[j][i]
        if value ~= nil then
          put[#put + 1] = field
          put[#put + 1] = value
        else
          gone[#gone + 1] = field
        end
      end
      call('HSET', key, put)
      call('HDEL', key, gone)
      if rows.ttl == 0 then redis.call('PERSIST', key) end  -- the sink may have had a ttl before
    end
    if kind == PUT and rows.ttl > 0 then redis.call('EXPIRE', key, rows.ttl) end
  end
end
"""

REPLACE = (
    _APPLY
    + """
-- KEYS: the memory, and chunks that were staged
-- ARGV: version of the document that was read, new document, epoch, attempt, number of the checkpoint, new version,
--       and if rows were sent: how many, digest of their plan
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if version ~= ARGV[1] then return {'OVERTAKEN', version} end
if ARGV[7] then
  local sent = redis.call('HMGET', KEYS[1], 'done', 'plan')
  local done = sent[2] == ARGV[8] and sent[1] or '0'
  if done ~= ARGV[7] then return {'GAP', done} end
end
local parts, types = {}, {}
for k = 2, #KEYS do
  local part = redis.call('GET', KEYS[k])
  if not part then return {'EXPIRED', tostring(k)} end
  parts[k - 1] = cmsgpack.unpack(part)
  local wrong = unfit(parts[k - 1])
  if wrong then return {'WRONGTYPE', parts[k - 1].keys[wrong]} end
  for i, key in ipairs(parts[k - 1].keys) do  -- two sinks may write one key
    if (types[key] or parts[k - 1].type) ~= parts[k - 1].type then return {'WRONGTYPE', key} end
    types[key] = parts[k - 1].type
  end
end
for _, part in ipairs(parts) do
  apply(part, ARGV[5], 1)
end
for k = 2, #KEYS do redis.call('UNLINK', KEYS[k]) end
redis.call('HSET', KEYS[1], 'version', ARGV[6], 'document', ARGV[2], 'epoch', ARGV[3], 'attempt', ARGV[4])
return {'OK', ''}
"""
)
"""Replace the document unless another process has replaced it since, and apply what was staged.

If the server no longer has all rows that were sent, replace nothing: it has failed over since it acknowledged them.
"""

SEND = (
    _APPLY
    + """
-- KEYS: the memory
-- ARGV: epoch, attempt, number of the checkpoint, rows of the checkpoint before these, these rows, digest of the plan
local memory = redis.call('HMGET', KEYS[1], 'epoch', 'attempt', 'plan', 'done')
if memory[1] ~= ARGV[1] or memory[2] ~= ARGV[2] then
  return {'FENCED', tostring(memory[1]) .. ' ' .. tostring(memory[2])}
end
local done = memory[3] == ARGV[6] and tonumber(memory[4]) or 0
local first, rows = tonumber(ARGV[4]), cmsgpack.unpack(ARGV[5])
if first > done then return {'GAP', tostring(done)} end
if first + rows.count <= done then return {'OK', ''} end
local wrong = unfit(rows)
if wrong then return {'WRONGTYPE', rows.keys[wrong]} end
apply(rows, ARGV[3], done - first + 1)
redis.call('HSET', KEYS[1], 'plan', ARGV[6], 'done', string.format('%d', first + rows.count))
return {'OK', ''}
"""
)
"""Apply a chunk, if this attempt still owns the head and the rows before it are in."""

LACKING = """
-- ARGV: a key, and names of commands
local arguments = {TYPE = {}, UNLINK = {}, SET = {''}, EXPIRE = {'1'}, PERSIST = {}, HSET = {'f', ''}, HDEL = {'f'}}
local lacking = {}
for i = 2, redis.acl_check_cmd and #ARGV or 0 do  -- since 7.0
  if not redis.acl_check_cmd(ARGV[i], ARGV[1], unpack(arguments[ARGV[i]])) then lacking[#lacking + 1] = ARGV[i] end
end
return lacking
"""
"""Return the commands that this user may not run with a key. One of them could fail after others have written."""
