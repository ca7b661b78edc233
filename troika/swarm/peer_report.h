// Peers tell people how they do. Nothing is decided by it: a peer can tell anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troika/swarm/record.h"

namespace troika::swarm {

// The kind of the records with reports.
inline constexpr const char* kReport = "report";

// Sums are since the peer has joined.
struct PeerReport {
  std::string version = {};         // of its program
  int64_t steps = 0;                // that it made
  double samples = 0;               // that it contributed
  std::optional<double> loss = {};  // mean of its samples of the last step; none: not known
  int64_t loss_samples = 0;         // of that mean
  uint64_t sent = 0, received = 0;  // bytes of messages

  bool operator==(const PeerReport&) const = default;
};

// A loss that is not finite is left out.
std::string text_of(const PeerReport& report);
// Throws Error(swarm, failure) for texts that text_of() did not return.
PeerReport report_from(const std::string& text);
// Whether the body of such a record is valid (RecordRules::kinds).
bool is_report(const Record& record);

}  // namespace troika::swarm
