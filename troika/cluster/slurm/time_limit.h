// Slurm's format of time limits; see sbatch(1), --time.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace troika::cluster::slurm {

// Parses "90" (minutes), "30:00", "20:00:00", "1-0", "1-12:30" or "1-12:30:00". Returns nullopt for
// other text and for zero.
std::optional<std::chrono::seconds> parse_time(std::string_view text);

// Formats as hours, minutes and seconds: "100:00:00".
std::string format_time(std::chrono::seconds time);

}  // namespace troika::cluster::slurm
