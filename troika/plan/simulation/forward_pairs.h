// Forward passes of a simulation that take turns over a tensor axis.
#pragma once

#include <vector>

#include "troika/plan/simulation/event_loop.h"
#include "troika/plan/simulation/stage_collectives.h"

namespace troika::plan {

// The pairs of passes that ranks run at present, part by part (PairedForward).
class ForwardPairs {
 public:
  // `overlap` is PassesInStep::overlap. The others must outlive it; `queues` are those of
  // programs.groups().
  ForwardPairs(const RankPrograms& programs, const Recipes& recipes,
               std::vector<CollectiveQueue>& queues, EventLoop& loop, double overlap)
      : programs_(programs),
        recipes_(recipes),
        queues_(queues),
        loop_(loop),
        overlap_(overlap),
        pairs_(static_cast<size_t>(programs.ranks())) {}

  // Begins both passes of an item, which compute for `seconds`. Returns false if they do not take
  // turns.
  bool begin(int rank, const ProgramItem& item, double seconds);
  // Handles the event part_ends: issues the part's collective, and begins the next part if it need
  // not wait. Returns whether the event ends both passes.
  bool end_part(const Event& event);
  // Called when a collective of this group of programs.groups() has begun or ended.
  void change(size_t group);

 private:
  struct Pair {
    const std::vector<PassTurn>* turns = nullptr;  // null: the rank runs no pair
    double seconds = 0;                            // of each pass
    size_t part = 0;
    size_t first_collective = 0;  // number of part 0's in the queue
    bool waits = false;           // for a collective
    // Seconds that the part still computes, as of the time `since`, and how many of them it does in
    // a second.
    double left = 0, since = 0, rate = 1;
    size_t version = 0;  // of the event at the part's end; earlier ones do not count
  };

  Pair& pair(int rank) { return pairs_[static_cast<size_t>(rank)]; }
  CollectiveQueue& queue_of(int rank) { return queues_[programs_.computing(rank).group]; }
  void begin_part(int rank);
  // Pushes the end of the part that the rank computes, if it has one at the present rate.
  void expect_end(int rank);

  const RankPrograms& programs_;
  const Recipes& recipes_;
  std::vector<CollectiveQueue>& queues_;
  EventLoop& loop_;
  const double overlap_;
  std::vector<Pair> pairs_;  // by rank
};

}  // namespace troika::plan
