// Reports from the flight records of a failed job what each rank was doing.
#pragma once

#include <filesystem>
#include <string>

namespace troika::comm {

// Reads every *.json in `folder` and aligns the calls of the ranks by their sequence numbers. The
// report has, for the group that failed first:
// - a paragraph with one sentence per line: the first call that not all ranks finished, who was in
//   it and for how long, who never arrived and what was last seen of them, who called something
//   else or arrived much later than the others, who waited for a message, and the earliest cause;
// - a table of all ranks, with the seconds from the last call's start (unfinished or failed) or end
//   (finished) until the rank wrote its record;
// - a line for each other group, and for each file that could not be used.
// For a rank without a record, its last answer to another rank is used. Times on different hosts
// are only as comparable as the hosts' clocks.
//
// Throws Error(usage) if the folder does not exist, no file in it is a flight record, or the
// records cannot belong to one run.
std::string flight_report(const std::filesystem::path& folder);

}  // namespace troika::comm
