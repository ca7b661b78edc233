// Completes orders of passes to whole schedules.
#pragma once

#include <vector>

#include "troika/layout/schedules/schedule.h"

namespace troika::layout {

// A connection on which stage `from` sends an output directly to stage `to`, skipping the stages
// between.
struct SkipEdge {
  int from = 0;
  int to = 0;

  bool operator==(const SkipEdge&) const = default;
};

// Adds the actions that follow from the passes (F, B, I and W) of each rank: messages between
// stages on different ranks, including those along `skips`; if there are backward passes, a
// reduction of each stage as soon as its last backward pass is done, and the steps at the end; with
// `gathers`, a gather of each stage before its first pass.
//
// A send follows the pass that computed its tensor. Its receive is placed by a simulation with unit
// times (F = I = W = 1): where the receiving rank is when the send happens, but before the pass
// that needs the tensor. So all ranks have their messages in one common order, and sends cannot
// wait for each other in a cycle (Schedule::verify()). Throws the errors of replay(), and
// Error(usage) for a skip that is not from an earlier stage to a later one beyond its neighbour.
Schedule complete(const Schedule& passes, const std::vector<SkipEdge>& skips = {},
                  bool gathers = false);

// Returns only the passes.
Schedule passes_of(const Schedule& schedule);

// Returns a schedule of forward passes only, without gathers, for any number of micro-batches >= 1,
// with the stages on the same ranks as in `training`. If every pass takes 1, a loop of V stages on
// each of p ranks ends at V m + p - 1 if m is a multiple of p or V is 1, and a V of two stages per
// rank at 2m + 2p - 2. Throws the errors of complete().
Schedule evaluation_schedule(const Schedule& training, int micro_batches,
                             const std::vector<SkipEdge>& skips = {});

// Returns the actions of one replica of a stage's rank: micro-batch i belongs to replica i mod
// `replicas`, and actions without a micro-batch belong to all. If the schedule has no deadlock,
// replicas that run their parts of the schedule have none.
std::vector<Action> actions_of_replica(const std::vector<Action>& actions, int replica,
                                       int replicas);

// Returns the actions of micro-batches [begin, end), and those without a micro-batch. If the
// schedule has no deadlock, ranks that run these parts of it have none.
std::vector<Action> actions_between(const std::vector<Action>& actions, int begin, int end);

// Reads a schedule written by a person: parses it, completes it if it has neither messages nor
// steps, and verifies it. Throws the errors of these functions; `name` is the file's name, for
// errors.
Schedule read_schedule(std::string_view text, std::string_view name);

}  // namespace troika::layout
