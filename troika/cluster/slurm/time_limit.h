// Slurm's notation of time limits, sbatch(1) --time.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace troika::cluster::slurm {

// "90" (minutes), "30:00", "20:00:00", "1-0", "1-12:30", "1-12:30:00"; nothing for anything else,
// also for no time at all.
std::optional<std::chrono::seconds> parse_time(std::string_view text);

// "100:00:00": hours, minutes, seconds.
std::string format_time(std::chrono::seconds time);

}  // namespace troika::cluster::slurm
