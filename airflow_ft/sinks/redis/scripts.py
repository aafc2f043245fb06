"""Scripts that the server runs atomically: each runs alone, and the append-only file has its writes as one transaction.

Redis rolls nothing back when a script fails, so each script looks at all keys before it writes the first.
"""

_APPLY = """
local PUT, DELETE = 0, 1  -- other rows are left alone
-- Return the number of the checkpoint that wrote each key; or nil and the place of a key of another type.
local function look(rows)
  local numbers, prefix = {}, '{"' .. rows.version .. '":'
  for i = 1, rows.count do
    if rows.kinds[i] == PUT or rows.kinds[i] == DELETE then
      local key, found = rows.keys[i], nil
      if rows.version == '' then
        local type = redis.call('TYPE', key).ok
        if type ~= 'none' and type ~= rows.type then return nil, i end
      elseif rows.type == 'hash' then
        found = redis.pcall('HGET', key, rows.version)
      else
        found = redis.pcall('GETRANGE', key, 0, #prefix + 20)
      end
      if type(found) == 'table' then return nil, i end
      if found and rows.type == 'string' then
        found = found:sub(1, #prefix) == prefix and found:sub(#prefix + 1):match('^%d+') or nil
      end
      numbers[i] = found and tonumber(found) or 0
    end
  end
  return numbers
end
local function apply(rows, numbers, number, from)
  local fields, columns, width = rows.fields, rows.columns, #rows.fields
  local own = tonumber(number)
  for i = from, rows.count do
    local kind, key = rows.kinds[i], rows.keys[i]
    if (kind == PUT or kind == DELETE) and numbers[i] <= own then
      if kind == DELETE then
        redis.call('UNLINK', key)
      elseif rows.type == 'string' then
        redis.call('SET', key, columns[1][i])
      else
        local put, last, gone, lost = {key}, 1, {key}, 1
        if rows.version ~= '' then put[2], put[3], last = rows.version, number, 3 end
        for j = 1, width do
          local value = columns[j][i]
          if value ~= nil then
            put[last + 1], put[last + 2], last = fields[j], value, last + 2
          else
            lost = lost + 1
            gone[lost] = fields[j]
          end
        end
        if last > 1 then redis.call('HSET', unpack(put, 1, last)) end
        if lost > 1 then redis.call('HDEL', unpack(gone, 1, lost)) end
      end
      if kind == PUT and rows.ttl > 0 then redis.call('EXPIRE', key, rows.ttl) end
    end
  end
end
"""

REPLACE = (
    _APPLY
    + """
-- KEYS: the memory, and chunks that were staged
-- ARGV: version of the document that was read, new document, epoch, attempt, number of the checkpoint
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if version ~= ARGV[1] then return {'OVERTAKEN', version} end
local parts, types = {}, {}
for k = 2, #KEYS do
  local part = redis.call('GET', KEYS[k])
  if not part then return {'EXPIRED', tostring(k)} end
  parts[k - 1] = cmsgpack.unpack(part)
  local numbers, wrong = look(parts[k - 1])
  if not numbers then return {'WRONGTYPE', parts[k - 1].keys[wrong]} end
  for i, key in ipairs(parts[k - 1].keys) do  -- two sinks may write one key
    if (types[key] or parts[k - 1].type) ~= parts[k - 1].type then return {'WRONGTYPE', key} end
    types[key] = parts[k - 1].type
  end
end
for _, part in ipairs(parts) do
  apply(part, look(part), ARGV[5], 1)  -- an earlier part may have written the key
end
for k = 2, #KEYS do redis.call('UNLINK', KEYS[k]) end
redis.call('HSET', KEYS[1], 'version', string.format('%d', tonumber(version) + 1), 'document', ARGV[2],
  'epoch', ARGV[3], 'attempt', ARGV[4])
return {'OK', ''}
"""
)
"""Replace the document unless another process has replaced it since, and apply what was staged."""

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
local numbers, wrong = look(rows)
if not numbers then return {'WRONGTYPE', rows.keys[wrong]} end
apply(rows, numbers, ARGV[3], done - first + 1)
redis.call('HSET', KEYS[1], 'plan', ARGV[6], 'done', string.format('%d', first + rows.count))
return {'OK', ''}
"""
)
"""Apply a chunk, if this attempt still owns the head and the rows before it are in."""
