-- The runs of one GPU: put one of yours there.
select run_id, workload, began, ended, status from runs where gpu = 'GPU-5a3c7e10' order by began, run_id
