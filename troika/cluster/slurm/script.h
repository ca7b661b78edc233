// The script for sbatch: plain text that a user can read, edit and archive.
#pragma once

#include <string>
#include <string_view>

#include "troika/cluster/slurm/job.h"

namespace troika::cluster::slurm {

// Completes and checks the job first; see complete(). The output depends only on the job and the
// site.
//
// The last line replaces the shell with srun: the job's exit code is that of the ranks, and no
// shell has to forward signals. --kill-on-bad-exit=0: a failing rank notifies the others, which end
// with their own report (exit code 3); and ranks that saved may end at different times.
// --cpus-per-task is repeated because srun has not inherited it from sbatch since 22.05.
std::string make_script(const Job& job, const Site& site);

// Quotes a word for bash.
std::string shell_quote(std::string_view word);

}  // namespace troika::cluster::slurm
