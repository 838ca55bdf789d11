-- whorl: the slow nodes of a workload class, excluded for jobs whose user asks for it.
-- CliFilterPlugins=lua runs this in sbatch, salloc and srun, as the user. docs/slurm/README.md explains it.
--
--     WHORL_ADVISE=gemm-fp32 sbatch job.sh
--
-- It fails open: whatever is wrong with the file, the job is submitted as the user wrote it. The file is written by
-- `whorl advise --format exclude --output`, whole or not at all. Slurm links Lua 5.1 to 5.4: only what all have.

local FOLDER = "/etc/slurm/whorl" -- FOLDER/WORKLOAD.exclude
local OLDEST_S = 7 * 86400 -- advice that nobody refreshed for so long is not followed
local LONGEST = 65536 -- bytes read

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
  if os.time() - advice.written > OLDEST_S then return nil end
  return advice
end

-- The least number in an option such as "4", "2-6" or "gpu:v100:8"; 0 where there is none.
local function least(option)
  if option == nil then return 0 end
  option = tostring(option)
  return tonumber(option:match("^(%d+)") or option:match("[:=](%d+)$")) or 0
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

local function fits(options, advice)
  local partition = options["partition"]
  if partition == nil or partition == "" then
    if advice.default ~= 1 then return false end
  elseif partition ~= advice.partition then
    return false
  end
  if options["constraint"] ~= nil or options["reservation"] ~= nil then return false end -- other nodes than counted
  local tasks = math.max(least(options["ntasks"]), 1)
  local cpus = tasks * math.max(least(options["cpus-per-task"]), 1)
  local gpus = math.max(least(options["gpus"]), tasks * least(options["gpus-per-task"]))
  return enough(advice, counted(options["exclude"]), least(options["nodes"]), gpus, cpus)
end

function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end

function slurm_cli_pre_submit(options, offset)
  pcall(function()
    local workload = os.getenv("WHORL_ADVISE")
    if not workload or workload == "" or options["nodelist"] ~= nil then return end
    -- A step inside a job inherits the variable: the job has its nodes already.
    if os.getenv("SLURM_JOB_ID") and options["type"] ~= "sbatch" then return end
    local advice = read(workload)
    if not advice or not fits(options, advice) then return end
    local own = options["exclude"]
    options["exclude"] = (own and own ~= "" and own .. "," or "") .. advice.list
    local comment = options["comment"]
    if not own then -- so that `whorl advise apply` can refresh it
      options["comment"] = (comment and comment ~= "" and comment .. " " or "") .. "whorl:excluded=" .. advice.list
    end
    slurm.log_info("whorl: --exclude=%s (slow for %s)", advice.list, workload)
  end)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end

return slurm.SUCCESS
