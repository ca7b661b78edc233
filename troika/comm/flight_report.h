// Says from the flight records of a failed job which rank was where.
#pragma once

#include <filesystem>
#include <string>

namespace troika::comm {

// Reads every *.json in `folder`, aligns the calls of the ranks by their numbers, and reports on
// the group that failed first:
// - a paragraph, one sentence a line: the first call that not all ranks finished, who was in it and
//   for how long, who never came and what was seen of them last, who called something else or came
//   much later than the others, who waited for a message, and the first cause in time;
// - a table of all ranks, with the seconds from the last call's start (unfinished or failed) or end
//   (finished) until the rank wrote its record;
// - a line for each other group, and for each file that could not be used.
// A rank without a record counts with what it last told the others. Times on different hosts are as
// comparable as the hosts' clocks.
//
// Throws Error(usage) when there is no such folder, when no file in it is a flight record, and when
// the records cannot be of one run.
std::string flight_report(const std::filesystem::path& folder);

}  // namespace troika::comm
