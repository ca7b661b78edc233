// The state of a simulation: its ranks, and its pending events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace troika::plan {

// The state of a rank's next action.
enum class Activity {
  ready,     // may begin, or waits for messages or collectives
  computes,  // a pass
  gathers,   // waits for the parameters of a pass
  sums,      // waits for the sums of a pass over the tensor axis
  updates    // the optimizer's step
};

struct RankState {
  int step = 0;
  size_t next = 0;  // index in its program
  Activity activity = Activity::ready;
  double begin = 0;          // of the pass or the update
  double seconds = 0;        // for which the pass computes
  double busy_before = 0;    // of its replicas' collectives, up to the pass
  double slowed = 0;         // seconds that collectives have added to the pass
  size_t awaited = 0;        // collectives of its replicas that must end before the next action
  size_t awaited_sums = 0;   // collectives of its tensor axis that must end before the pass does
  double sums_since = 0;     // since when it waits for them
  double sums_factor = 1;    // the time of its last sums, divided by that without other flows
  double waits_since = -1;   // since when it waits for them; -1: it does not wait
  bool has_updated = false;  // the next action is a step whose update is done
  bool has_issued = false;   // the next action is a gather that was issued
  // For each item of the program, the number of messages that have arrived and are not used yet.
  std::vector<size_t> arrived = {};
  std::vector<size_t> buckets = {};  // by stage: reductions issued in this step
  std::vector<size_t> issued_until =
      {};             // by stage: collectives of the replicas up to the stage's last one
  double factor = 1;  // on its times
};

// pass_is_computed: a pass whose sums over the tensor axis begin now. part_ends: that of a pass
// that takes turns with another one (ForwardPairs). A collective's phase begins with `phase`;
// `flow` begins its flow, and phase_ends follows this.
enum class EventKind {
  pass_is_computed,
  part_ends,
  pass_ends,
  update_ends,
  message_arrives,
  bucket_is_ready,
  phase,
  flow,
  phase_ends
};

struct Event {
  double time = 0;
  uint64_t order = 0;  // among events at the same time
  EventKind kind = EventKind::pass_ends;
  int who = 0;       // a rank, or the group of a collective
  size_t what = 0;   // the item that takes a message, the stage of a bucket, or Pair::version
  double bytes = 0;  // of a message
  // For the end of a pass and a bucket in it: the time if collectives do not slow the pass.
  double undisturbed = 0;

  bool operator>(const Event& other) const {
    return std::pair(time, order) > std::pair(other.time, other.order);
  }
};

}  // namespace troika::plan
