// The script for sbatch: plain text that a person can read, keep beside the results and change.
#pragma once

#include <string>
#include <string_view>

#include "troika/cluster/slurm/job.h"

namespace troika::cluster::slurm {

// The same bytes for the same job and site. Completes and checks the job first, see complete().
//
// The last line replaces the shell by srun, so that the job's exit code is the ranks' and no shell
// has to pass signals on. --kill-on-bad-exit=0: a rank that fails tells the others itself, which
// then end with their own report (exit code 3), and ranks that saved may end at different times.
// --cpus-per-task stands there again because srun has not taken it over from sbatch since 22.05.
std::string make_script(const Job& job, const Site& site);

// The word as bash reads it back, whatever is in it.
std::string shell_quote(std::string_view word);

}  // namespace troika::cluster::slurm
