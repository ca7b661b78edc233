// One rank of a job in which one rank misbehaves.
#pragma once

#include <filesystem>
#include <string>

namespace troika::comm {

struct FaultPlan {
  std::string backend;
  std::string fault;
  std::string when;
  std::filesystem::path folder;
  int victim = 0;
};

// Every rank calls a barrier "start" and two sums, "step" and "next". `fault` is what the victim
// does, and `when` the moment: before "step", during it or after it. With `when` "halves", the
// ranks call the operation `fault` instead of "step", the lower half of the ranks in one way and
// the upper half in another; `victim` is its root. With `when` "edge" or "edge_full" the victim
// misbehaves instead of sending or receiving the next tensor of edges; a `fault` "edge_..." names
// the property of the edge between ranks 0 and 1 on which they disagree. With `when` "copy_from" or
// "copy_to" the victim dies while it sends the next rank a long message, or receives one from it.
// Each rank writes one line into the pipe FOLDER/news: rank, process id, milliseconds of the last
// call, kind of the error (0: none), time of the error or of the fault (milliseconds of the
// machine's monotonic clock), message. The rank's number is taken from the environment. Returns the
// exit status of the process.
int run_fault_rank(const FaultPlan& plan);

}  // namespace troika::comm
