-- whorl: the slow nodes of a workload class, excluded for jobs whose user asks for it in the job's comment.
-- JobSubmitPlugins=lua runs this in slurmctld, which holds its locks meanwhile: one small local file is read at most
-- once in a minute for each workload, and nothing is run. docs/slurm/README.md explains it.
--
--     sbatch --comment=whorl=gemm-fp32 job.sh
--
-- It fails open: whatever is wrong with the file, the job is submitted as the user wrote it. It acts only on jobs of
-- which it can count the nodes; every other job stays as it was written. The file is written by
-- `whorl advise --format exclude --set output=FILE`, whole or not at all. Slurm links Lua 5.1 to 5.4: only what all have.

local FOLDER = "/etc/slurm/whorl" -- FOLDER/WORKLOAD.exclude
local OLDEST_S = 86400 -- advice that nobody refreshed for so long is not followed
local LONGEST = 65536 -- bytes read
local FRESH_S = 60 -- a file is looked at again after this time
local MOST = 64 -- workloads remembered

local cache, cached = {}, 0

local function read(workload)
  if not workload:match("^[%w_.-]+$") or workload:find("..", 1, true) then return nil end
  local file = io.open(FOLDER .. "/" .. workload .. ".exclude", "r")
  if not file then return nil end
  local text = file:read(LONGEST)
  file:close()
  local body, facts = (text or ""):match("^(.*)\n# whorl ([^\n]*)\n$")
  if not body or body == "" then return nil end
  local advice = { kinds = {} }
  for key, value in facts:gmatch("(%w+)=(%S+)") do advice[key] = tonumber(value) or value end
  if advice.length ~= #body or type(advice.written) ~= "number" then return nil end
  advice.partition = tostring(advice.partition)
  for most, list in body:gmatch("\n# (%d+) ([%w%[%],._-]+)") do
    table.insert(advice.kinds, { most = tonumber(most), list = list })
  end
  return advice
end

local function advice_for(workload)
  local now = os.time()
  local entry = cache[workload]
  if not entry or now - entry.seen > FRESH_S or now < entry.seen then
    if not entry then
      if cached >= MOST then cache, cached = {}, 0 end -- names that users made up
      cached = cached + 1
    end
    entry = { seen = now, advice = read(workload) }
    cache[workload] = entry
  end
  local advice = entry.advice
  if advice and now - advice.written > OLDEST_S then return nil end
  return advice
end

-- A number of a job, 0 where it was not asked for: Slurm says so with the last ones below 2^16, 2^32 or 2^64.
local function given(number)
  number = tonumber(number) or 0
  return ((number >= 4294967293 or (number >= 65533 and number <= 65535)) and 0) or number
end

-- How many names a user's own list has, as "a,b"; nil where that cannot be told without expanding it.
local function names(list)
  if list == nil or list == "" then return 0 end
  if list:find("[%[/]") then return nil end
  local _, commas = list:gsub(",", "")
  return commas + 1
end

-- GPUs in "gres:gpu:v100:4,gres:gpu:a100:4" or "gres/gpu=8", 0 where nothing is asked; nil where it says more.
local function total(tres)
  local sum = 0
  for part in (tres or ""):gmatch("[^,]+") do
    local number = part:match("^gres[:/]gpu[:=](%d+)$") or part:match("^gres[:/]gpu:[%w_.-]+[:=](%d+)$")
    if not number and not part:match("^cpu[:=]%d+$") then return nil end
    sum = sum + (tonumber(number) or 0)
  end
  return sum
end

-- The most nodes that a job can need: the upper number of --nodes, or one for each task or GPU, whichever are more.
local function most_nodes(job)
  if given(job.max_nodes) > 0 then return given(job.max_nodes) end
  local tasks, gpus = given(job.num_tasks), total(job.tres_per_job)
  if tasks == 0 then
    if given(job.ntasks_per_tres) > 0 then return nil end
    tasks = math.ceil(given(job.min_cpus) / math.max(given(job.cpus_per_task), 1))
  end
  return gpus and math.max(given(job.min_nodes), gpus, tasks, 1)
end

-- Fields and options that name nodes or kinds of nodes, or whose nodes are not counted.
local CHOICES = { req_nodes = "nodelist", features = "constraint", batch_features = "batch", prefer = "prefer",
  reservation = "reservation", clusters = "clusters", burst_buffer = "bb", tres_per_socket = "gpus-per-socket" }

-- The nodes of the advice without which enough of their kind are left for a job that may need so many; nil if none.
local function spared(advice, need)
  local lists = {}
  for _, kind in ipairs(advice.kinds) do
    if need <= kind.most then table.insert(lists, kind.list) end
  end
  return lists[1] and table.concat(lists, ",")
end

-- The nodes to exclude for a job; nil, and why, where it is left alone.
local function choice(job, advice)
  local partition = job.partition
  if partition == nil or partition == "" then
    if advice.default ~= 1 then return nil, "the advice is for partition " .. advice.partition end
  elseif partition ~= advice.partition then
    return nil, "the advice is for partition " .. advice.partition
  end
  for field, option in pairs(CHOICES) do
    if (job[field] or "") ~= "" then return nil, "it has --" .. option end
  end
  if given(job.contiguous) > 0 or given(job.req_switch) > 0 or given(job.segment_size) > 0 or given(job.shared) > 2 then
    return nil, "its nodes depend on each other"
  end
  if given(job.immediate) > 0 then return nil, "it must not wait" end
  if (tonumber(job.het_job_offset) or 65535) < 65533 then return nil, "it is part of a heterogeneous job" end
  if (job.dependency or ""):find("expand", 1, true) then return nil, "it is for another job" end
  local own, most = names(job.exc_nodes), total(job.tres_per_task) and most_nodes(job)
  if not own or not most then return nil, "its nodes cannot be counted" end
  return spared(advice, most + own), "it may need more nodes than are surely left"
end

-- Loaded at the end of a script of the site's own, whorl comes after it, and only where that lets the job pass.
local site = slurm_job_submit

function slurm_job_submit(job, partitions, uid)
  if site then
    local answer = site(job, partitions, uid)
    if answer ~= slurm.SUCCESS then return answer end
  end
  local ok, problem = pcall(function()
    local workload = (" " .. (job.comment or "")):match("%swhorl=(%S+)")
    local advice = workload and advice_for(workload)
    if not advice then return end
    local list, problem = choice(job, advice)
    if not list then
      slurm.log_user("whorl: nothing is excluded: %s", problem)
      return
    end
    local own, noted = job.exc_nodes, job.admin_comment
    if own ~= nil and own ~= "" then
      job.exc_nodes = own .. "," .. list
    else
      job.exc_nodes = list
      local note = "whorl:excluded=" .. list -- so that `whorl advise apply` can refresh it
      job.admin_comment = (noted and noted ~= "" and noted .. " " or "") .. note
    end
    slurm.log_user("whorl: %s excluded (slow for %s); without whorl= in --comment nothing is", list, workload)
  end)
  if not ok then slurm.log_error("whorl: %s", tostring(problem)) end
  return slurm.SUCCESS
end

slurm_job_modify = slurm_job_modify or function(job, record, partitions, uid) return slurm.SUCCESS end

return slurm.SUCCESS
