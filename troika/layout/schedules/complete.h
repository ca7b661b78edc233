// Makes whole schedules of orders of passes.
#pragma once

#include <vector>

#include "troika/layout/schedule.h"

namespace troika::layout {

// An output of stage `from` that goes straight to stage `to`, past those between them.
struct SkipEdge {
  int from = 0;
  int to = 0;

  bool operator==(const SkipEdge&) const = default;
};

// Adds what follows from the passes (F, B, I and W) of each rank: messages between stages on
// different ranks, also along `skips`; where there are backward passes, a reduction of each stage
// as soon as its last one is done, and the steps at the end; with `gathers`, a gather of each stage
// before its first pass.
//
// A send follows the pass that made its tensor; its receive is on the other rank where that rank is
// then by unit times (F = I = W = 1), before the pass that needs it. All messages are thereby in
// one order that all ranks keep, so no sends can wait for each other in a circle
// (Schedule::verify()). Throws what replay() throws, and Error(usage) for a skip that is not from
// an earlier stage to a later one beyond its neighbour.
Schedule complete(const Schedule& passes, const std::vector<SkipEdge>& skips = {},
                  bool gathers = false);

// The passes alone.
Schedule passes_of(const Schedule& schedule);

// A schedule of forward passes alone, for so many micro-batches (any number from 1 on), with the
// stages of `training` on the same ranks and without gathers. If all passes take 1, a loop of V
// stages on each of p ranks ends at V m + p - 1 where m is a multiple of p or V is 1, and a V of
// two at 2m + 2p - 2. Throws as complete().
Schedule evaluation_schedule(const Schedule& training, int micro_batches,
                             const std::vector<SkipEdge>& skips = {});

// The actions of one of a stage's replicas where micro-batch i is for replica i mod `replicas`,
// with actions that are not of a micro-batch. Every replica of every stage that keeps its part of a
// schedule without deadlock is in no deadlock either.
std::vector<Action> actions_of_replica(const std::vector<Action>& actions, int replica,
                                       int replicas);

// A schedule that a person wrote: parses it, completes it where it has neither messages nor steps,
// and verifies it. Throws as these do; `name` is the file's, for errors.
Schedule read_schedule(std::string_view text, std::string_view name);

}  // namespace troika::layout
