-- whorl: the slow nodes of a workload class, excluded for jobs whose user asks for it in the job's comment.
-- JobSubmitPlugins=lua runs this in slurmctld, which holds its locks meanwhile: one small local file is read at most
-- once in a minute for each workload, and nothing is run. docs/slurm/README.md explains it.
--
--     sbatch --comment=whorl=gemm-fp32 job.sh
--
-- It fails open: whatever is wrong with the file, the job is submitted as the user wrote it. The file is written by
-- `whorl advise --format exclude --output`, whole or not at all. Slurm links Lua 5.1 to 5.4: only what all have.

local FOLDER = "/etc/slurm/whorl" -- FOLDER/WORKLOAD.exclude
local OLDEST_S = 7 * 86400 -- advice that nobody refreshed for so long is not followed
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
  local list, facts = (text or ""):match("^([^\n]*)\n# whorl ([^\n]*)\n$")
  if not list or list == "" or not list:match("^[%w%[%],._-]+$") then return nil end
  local advice = { list = list }
  for key, value in facts:gmatch("(%w+)=(%S+)") do advice[key] = tonumber(value) or value end
  if advice.length ~= #list or type(advice.written) ~= "number" then return nil end
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

-- A number of a job, 0 where it was not asked for: Slurm says so with a number near 2^16, 2^32 or 2^64.
local function given(number)
  number = tonumber(number) or 0
  return (number >= 65533 and 0) or number
end

-- How many names a user's own list has, as "a,b"; nil where that cannot be told without expanding it.
local function counted(list)
  if list == nil or list == "" then return 0 end
  if list:find("[%[/]") then return nil end
  local _, commas = list:gsub(",", "")
  return commas + 1
end

-- Whether so much is left in the partition without the nodes of the advice and of the user's own list.
local function enough(advice, own, nodes, gpus, cpus)
  local all = tonumber(advice.nodes) or 0
  if own == nil or all <= own then return false end
  local share = (all - own) / all
  return math.max(nodes, 1) <= all - own
    and gpus <= (tonumber(advice.gpus) or 0) * share
    and cpus <= (tonumber(advice.cpus) or 0) * share
end

-- GPUs in "gres:gpu:v100:8" or "gres/gpu=8".
local function asked(tres)
  return tonumber((tres or ""):match("gpu[^,]*[:=](%d+)")) or 0
end

local function fits(job, advice)
  local partition = job.partition
  if partition == nil or partition == "" then
    if advice.default ~= 1 then return false end
  elseif partition ~= advice.partition then
    return false
  end
  if (job.features or "") ~= "" or (job.reservation or "") ~= "" then return false end -- other nodes than counted
  local tasks = math.max(given(job.num_tasks), 1)
  local cpus = tasks * math.max(given(job.cpus_per_task), 1)
  local gpus = math.max(asked(job.tres_per_job), tasks * asked(job.tres_per_task))
  return enough(advice, counted(job.exc_nodes), given(job.min_nodes), gpus, cpus)
end

function slurm_job_submit(job, partitions, uid)
  local ok, problem = pcall(function()
    local workload = (" " .. (job.comment or "")):match("%swhorl=(%S+)")
    if not workload or (job.req_nodes ~= nil and job.req_nodes ~= "") then return end
    local advice = advice_for(workload)
    if not advice or not fits(job, advice) then return end
    local own = job.exc_nodes
    if own ~= nil and own ~= "" then
      job.exc_nodes = own .. "," .. advice.list
    else
      job.exc_nodes = advice.list
      job.admin_comment = "whorl:excluded=" .. advice.list -- so that `whorl advise apply` can refresh it
    end
    slurm.log_user("whorl: %s excluded (slow for %s); without whorl= in --comment nothing is", advice.list, workload)
  end)
  if not ok then slurm.log_error("whorl: %s", tostring(problem)) end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end

return slurm.SUCCESS
