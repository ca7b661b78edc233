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

// Every rank calls a barrier "start" and two sums, "step" and "next". `fault` says what the victim
// does, `when` at which of them: before "step", during it, or after it. With `when` "halves",
// `fault` is an operation that the lower half of the ranks calls in one way and the upper half in
// another, in place of "step"; `victim` is its root. With `when` "edge" or "edge_full" the victim
// misbehaves instead of sending or receiving the next tensor of edges; a `fault` "edge_..." says in
// what ranks 0 and 1 disagree about the edge between them. With `when` "copy_from"
// or "copy_to" the victim dies while it sends the next rank a long message, or receives one from
// it. The notice that each rank got goes as one line into FOLDER/news, a pipe: rank, pid,
// milliseconds of the last call, kind of the error (0: none), when the rank knew it or misbehaved
// (milliseconds of the machine's monotonic clock), message. Returns the exit status of the rank's
// process, whose number is in the environment.
int run_fault_rank(const FaultPlan& plan);

}  // namespace troika::comm
