#include "troika/comm/routed.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace troika::comm {

namespace {

class RoutedGroup : public GroupImpl {
 public:
  RoutedGroup(std::shared_ptr<GroupImpl> near, std::shared_ptr<GroupImpl> far, Station station)
      : GroupImpl(std::move(station), far->lifeline()),
        near_(std::move(near)),
        far_(std::move(far)) {
    const auto& nodes = this->station().nodes;
    const int mine = nodes[static_cast<size_t>(rank())];
    int neighbours = 0;
    for (const int node : nodes) near_rank_.push_back(node == mine ? neighbours++ : kFar);
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const int near = near_rank_[static_cast<size_t>(peer)];
    return near == kFar ? far_->send(peer, tag, data, bytes) : near_->send(near, tag, data, bytes);
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const int near = near_rank_[static_cast<size_t>(peer)];
    return near == kFar ? far_->receive(peer, tag, data, bytes)
                        : near_->receive(near, tag, data, bytes);
  }

 private:
  static constexpr int kFar = -1;

  const std::shared_ptr<GroupImpl> near_;
  const std::shared_ptr<GroupImpl> far_;
  std::vector<int> near_rank_;  // among this node's ranks, by rank
};

}  // namespace

std::shared_ptr<GroupImpl> make_routed(std::shared_ptr<GroupImpl> near,
                                       std::shared_ptr<GroupImpl> far) {
  Station station = far->station();
  station.backend = fmt::format("{}+{}", near->station().backend, station.backend);
  station.any_thread = near->station().any_thread && station.any_thread;
  return std::make_shared<RoutedGroup>(std::move(near), std::move(far), std::move(station));
}

}  // namespace troika::comm
