-- whorl: the slow nodes of a workload class, excluded for jobs whose user asks for it.
-- CliFilterPlugins=lua runs this in sbatch, salloc and srun, as the user. docs/slurm/README.md explains it.
--
--     WHORL_ADVISE=gemm-fp32 sbatch job.sh
--
-- It fails open: whatever is wrong with the file, the job is submitted as the user wrote it. It acts only on jobs of
-- which it can count the nodes; every other job stays as it was written. The file is written by
-- `whorl advise --format exclude --set output=FILE`, whole or not at all. Slurm links Lua 5.1 to 5.4: only what all have.

local FOLDER = "/etc/slurm/whorl" -- FOLDER/WORKLOAD.exclude
local OLDEST_S = 86400 -- advice that nobody refreshed for so long is not followed
local LONGEST = 65536 -- bytes read

-- What such a job may ask for: options that do not change on which nodes it can run, or which are counted below.
-- A pattern after an option: not with such a value. An option that is not here: the job is left alone.
local COUNTED = { partition = true, exclude = true, nodes = true, ntasks = true, ["ntasks-per-node"] = true,
  gpus = true, ["gpus-per-node"] = true, ["gpus-per-task"] = true, gres = true }
for option in ([[account acctg-freq array begin bell chdir comment cpu-bind cpu-freq cpus-per-gpu cpus-per-task error
  exclusive export export-file get-user-env gpu-bind gpu-freq gres-flags hold input interactive job-name kill-command
  kill-on-bad-exit kill-on-invalid-dep label licenses mail-type mail-user mem mem-bind mem-per-cpu mem-per-gpu mincpus
  mpi nice no-bell no-kill no-requeue no-shell open-mode output oversubscribe parsable priority profile propagate pty
  qos quiet requeue signal task-epilog task-prolog test-only time time-min tmp unbuffered verbose wait wait-all-nodes
  wckey wrap x11]]):gmatch("%S+") do
  COUNTED[option] = true
end
COUNTED.dependency = "expand" -- gives its nodes to another job
COUNTED.distribution = "arbitrary" -- names its nodes
COUNTED.exclusive = "^[mt]" -- "mcs", "topo": its nodes depend on each other

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
  if os.time() - advice.written > OLDEST_S then return nil end
  return advice
end

-- How many names a user's own list has, as "a,b"; nil where that cannot be told without expanding it.
local function names(list)
  if list == nil or list == "" then return 0 end
  if list:find("[%[/]") then return nil end
  local _, commas = list:gsub(",", "")
  return commas + 1
end

-- GPUs in "8", "v100:8" or "v100:4,a100:4"; nil where it says something else.
local function total(gpus)
  local sum = 0
  for part in (gpus .. ","):gmatch("([^,]*),") do
    local number = part:match("^(%d+)$") or part:match("^[%w_.-]+:(%d+)$")
    if not number then return nil end
    sum = sum + tonumber(number)
  end
  return sum
end

local function contents(path)
  local file = io.open(path, "r")
  if not file then return nil end
  local text = file:read(4 * 1024 * 1024) -- Slurm takes scripts of at most this size
  file:close()
  return text
end

-- Why the job may have several parts, each with nodes of its own: this runs before Slurm reads the second one.
local function parts(options, offset)
  local line = contents("/proc/self/cmdline")
  if offset ~= 0 or not line or ("\0" .. line):find("\0:\0", 1, true) then return "it is a heterogeneous job" end
  if options["type"] ~= "sbatch" or options["wrap"] ~= nil then return nil end
  local script = contents((options["argv"] or {})[1] or "")
  if not script then return "its script is in no file that can be read" end
  return (script:find("hetjob", 1, true) or script:find("packjob", 1, true)) and "it is a heterogeneous job" or nil
end

-- The most nodes that a job can need: the upper number of --nodes, or one for each task or GPU, whichever are more.
local function most_nodes(options, given)
  local nodes = options["nodes"]
  if given.nodes then return tonumber(nodes:match("^(%d+)$") or nodes:match("^%d+%-(%d+)$")) end
  if nodes ~= nil and nodes ~= "1-0" then return nil end
  local gpus = total(given.gpus and options["gpus"] or "0")
  local tasks, on_each = tonumber(options["ntasks"] or 1), tonumber(options["ntasks-per-node"] or 1)
  return gpus and tasks and on_each and math.max(gpus, tasks, on_each, 1)
end

-- The nodes of the advice without which enough of their kind are left for a job that may need so many; nil if none.
local function spared(advice, need)
  local lists = {}
  for _, kind in ipairs(advice.kinds) do
    if need <= kind.most then table.insert(lists, kind.list) end
  end
  return lists[1] and table.concat(lists, ",")
end

-- The nodes to exclude for a job; nil, and why, where it is left alone.
local function choice(options, offset, advice)
  -- The options that were given, as {"nodes":"4","argv":["job.sh"]}: escaped signs out, then only keys have a colon.
  local listed, given = slurm.json_cli_options(options), {}
  if type(listed) ~= "string" then return nil, "this Slurm cannot list its options" end
  for key, colon in listed:gsub("\\.", ""):gmatch('"([^"]*)"%s*(:?)') do
    if colon == ":" and key ~= "argv" and key:sub(1, 6) ~= "spank:" then -- those act when the job runs
      local counted = COUNTED[key]
      if not counted or (counted ~= true and tostring(options[key]):find(counted)) then
        return nil, "it has --" .. key
      end
      given[key] = true
    end
  end
  -- Asked for by a variable of the environment, these two are not on that list.
  if (options["switches"] or "unset") ~= "unset" then return nil, "it has --switches" end
  if options["type"] == "srun" and os.getenv("SLURM_IMMEDIATE") then return nil, "it has --immediate" end
  local partition = options["partition"]
  if partition == nil or partition == "" then
    if advice.default ~= 1 then return nil, "the advice is for partition " .. advice.partition end
  elseif partition ~= advice.partition then
    return nil, "the advice is for partition " .. advice.partition
  end
  local problem = parts(options, offset)
  if problem then return nil, problem end
  local own, most = names(options["exclude"]), most_nodes(options, given)
  if not own or not most then return nil, "its nodes cannot be counted" end
  return spared(advice, most + own), "it may need more nodes than are surely left"
end

-- Loaded at the end of a script of the site's own, whorl comes after it, and only where that lets the job pass.
local site = slurm_cli_pre_submit

function slurm_cli_pre_submit(options, offset)
  if site then
    local answer = site(options, offset)
    if answer ~= slurm.SUCCESS then return answer end
  end
  pcall(function()
    local workload = os.getenv("WHORL_ADVISE")
    if not workload or workload == "" then return end
    -- A step inside a job inherits the variable: the job has its nodes already.
    if os.getenv("SLURM_JOB_ID") and options["type"] ~= "sbatch" then return end
    local advice = read(workload)
    if not advice then return end
    local list, problem = choice(options, offset, advice)
    if not list then
      slurm.log_info("whorl: nothing is excluded: %s", problem)
      return
    end
    local own = options["exclude"]
    options["exclude"] = (own and own ~= "" and own .. "," or "") .. list
    slurm.log_info("whorl: --exclude=%s (slow for %s)", list, workload)
  end)
  return slurm.SUCCESS
end

slurm_cli_setup_defaults = slurm_cli_setup_defaults or function(options, early) return slurm.SUCCESS end
slurm_cli_post_submit = slurm_cli_post_submit or function(offset, job_id, step_id) return slurm.SUCCESS end

return slurm.SUCCESS
