// One whole call over messages: which algorithm carries out which operation.
#pragma once

#include <optional>

#include "troika/comm/algorithms/measure_links.h"
#include "troika/comm/algorithms/nodes.h"
#include "troika/comm/call.h"

namespace troika::comm {

// Carries out calls of one group, for which no back end had a faster way. Buffers are on the host.
class MessageCollectives {
 public:
  // For the group of `station`, as this rank sees it.
  explicit MessageCollectives(const Station& station) : nodes_(station.nodes, station.rank) {}

  // Carries out the call of `channel`, after GroupImpl::agree(). Blocks. Throws what messages
  // throw, and Error(usage) on every rank where the splits of an all_to_all do not fit together.
  void run(Channel& channel, const Call& call, Deadline deadline);

  // The same on all ranks.
  void assume(const std::optional<Links>& links) { links_ = links; }
  const std::optional<Links>& known_links() const { return links_; }

  const Traffic& traffic() const { return traffic_; }

 private:
  void all_reduce(const Party& party, const Call& call);
  void reduce_scatter(const Party& party, const Call& call);
  void all_gather(const Party& party, const Call& call);
  void broadcast(const Party& party, const Call& call);
  void barrier(const Party& party);
  // Measured now, by all ranks, unless they were before or are assumed.
  const Links& links(const Party& party);
  void check_splits(const Party& party, const Call& call);

  const Nodes nodes_;
  Traffic traffic_;
  std::optional<Links> links_;
};

}  // namespace troika::comm
