// The time of a step by Troika's cost model, added up stage by stage.
#pragma once

#include <array>
#include <span>
#include <vector>

namespace troika::plan {

// The cost of a stage. Times are in seconds; "a pass" is the forward and the backward pass of a
// micro-batch.
struct StageCost {
  double latency = 0;   // of one micro-batch, while the pipeline fills and drains
  double steady = 0;    // of the other micro-batches; gpipe: of their forward passes
  double backward = 0;  // gpipe: of the backward passes of the other micro-batches
  double whole = 0;     // zb-h1: of all micro-batches without waits
  double fill = 0;      // zb-h1: of a forward pass
  double exposed = 0;
  // Round trips of messages. `in_flight` is 0 if the stage does not wait for them.
  double around = 0;   // of a micro-batch on its way to later stages and back
  double turn = 0;     // added to the round trip of the stage at which it begins
  double between = 0;  // at least, between the begins of messages to both sides
  int in_flight = 0;   // micro-batches from this stage on, of all its replicas
  int replicas = 1;
  int rounds = 0;  // micro-batches that may wait
  double memory_bytes = 0;
  double lacking_bytes = 0;  // <= 0 if the stage fits
};

// The cost of the messages between two stages, in seconds. Arrays are by layout::Level.
struct WireCost {
  double seconds = 0;                // of a message, one way
  double latency = 0;                // as StageCost::latency
  double fill = 0;                   // as StageCost::fill
  std::array<double, 3> ports = {};  // that a micro-batch keeps the busiest port busy, one way
  std::array<double, 3> flows = {};  // that a message takes on its links, without their latency
  int rounds = 0;                    // micro-batches after the first one; without flushes: all
  int port_rounds = 0;               // micro-batches after the first one of each replica
  bool alternates = true;            // messages go both ways at the same time
};

// The messages after a stage, and the stage that they go to.
struct Onward {
  WireCost wire = {};
  int in_flight = 0;  // StageCost::in_flight of the next stage
};

// The cost of the first stages of a pipeline.
//
// A stage i with K(i) micro-batches in flight begins another one when one has come back. The order
// of its passes ties forward pass j + K to backward pass j; that of a later stage l with R(l)
// replicas ties backward pass j to forward pass j + K(l) - R(l). So the round trip from i to l and
// back takes place once for K(i) - K(l) + R(l) micro-batches, and the longest time for each
// micro-batch is the maximum cycle ratio of the marked graph of the schedule (Baccelli, Cohen,
// Olsder, Quadrat: Synchronization and Linearity, section 2.5).
//
// Two messages that a stage sends to both sides at about the same time share its port, if one takes
// longer than the passes between them. Both then take longer by this time.
class PartialCost {
 public:
  // Adds a stage after the messages to it; for the first stage, `wire` is a WireCost with `rounds`
  // alone.
  void add(const WireCost& wire, const StageCost& stage);

  // Takes lower bounds on the maxima over the stages that will follow.
  void expect(double steady, double backward, double whole);

  // Returns the seconds of a step if later stages add this to the latency and nothing else.
  double seconds(double later_latency = 0) const;

  // Whether every pipeline that begins like this one takes at most as long as the pipeline that
  // begins like `other` and goes on in the same way. Both end with as many replicas at the same
  // block and device. `onward`: all ways to go on. May be false although it is so.
  bool is_below(const PartialCost& other, std::span<const Onward> onward) const;

 private:
  // From a stage to the last stage and back, not counting the way home of the last messages.
  struct Trip {
    double seconds = 0;
    int in_flight = 0;
  };

  void add_trips(const WireCost& wire, const StageCost& stage);
  void drop_short_trips();
  double seconds_of_round() const { return rounds_ > 0 ? steady_ / rounds_ : 0; }
  bool is_covered(const Trip& trip, const PartialCost& other, std::span<const Onward> onward) const;
  bool has_lower_ports(const PartialCost& other, std::span<const Onward> onward) const;

  double latency_ = 0, steady_ = 0, backward_ = 0, exposed_ = 0;  // see StageCost
  double fill_ = 0, whole_ = 0;
  int rounds_ = 0;
  std::array<double, 3> ports_ = {};  // of the last messages, in all rounds
  std::array<double, 3> gaps_ = {};   // for which the last stage sends two messages at once
  Trip own_ = {};                     // of the last stage
  // The trips of earlier stages that may still decide; the latest stage is last.
  std::vector<Trip> trips_ = {};
};

}  // namespace troika::plan
