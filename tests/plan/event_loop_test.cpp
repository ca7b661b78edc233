#include "troika/plan/simulation/event_loop.h"

#include <gmock/gmock.h>

#include <vector>

namespace troika::plan {
namespace {

using testing::ElementsAre;
using testing::Pair;

// Two devices of one host, whose link carries 10 bytes a second.
layout::Cluster two_devices() {
  auto cluster = layout::Cluster::uniform(1, 2);
  cluster.group = cluster.host = {.latency = 0.5, .bandwidth = 10};
  return cluster;
}

// The times of all events, with `who` of each.
std::vector<std::pair<double, int>> run(EventLoop& loop) {
  std::vector<std::pair<double, int>> seen;
  while (const auto event = loop.next()) {
    EXPECT_EQ(event->time, loop.now());
    seen.emplace_back(event->time, event->who);
  }
  return seen;
}

TEST(EventLoop, EventsComeInTheOrderOfTheirTimesThenAsPushed) {
  const ClusterLinks links(two_devices());
  EventLoop loop(links);
  for (const int who : {3, 1, 2}) loop.push({.time = 1, .who = who});
  loop.push({.time = 0.5, .who = 4});
  EXPECT_THAT(run(loop), ElementsAre(Pair(0.5, 4), Pair(1, 3), Pair(1, 1), Pair(1, 2)));
}

// A flow ends between events, and a message arrives a latency after its flow.
TEST(EventLoop, EndsOfFlowsAreEvents) {
  const ClusterLinks links(two_devices());
  EventLoop loop(links);
  loop.begin({}, 0, {.kind = EventKind::phase_ends, .who = 7});
  loop.send(0, {.kind = EventKind::message_arrives, .who = 1, .bytes = 10});
  loop.push({.time = 0, .who = 4});
  loop.push({.time = 1.25, .who = 5});
  loop.push({.time = 1.5, .who = 6});
  EXPECT_THAT(run(loop),
              ElementsAre(Pair(0, 4), Pair(0, 7), Pair(1.25, 5), Pair(1.5, 6), Pair(1.5, 1)));
}

TEST(EventLoop, FlowsThatBeginAtOneInstantShareTheirLink) {
  const ClusterLinks links(two_devices());
  EventLoop loop(links);
  for (const int who : {0, 0}) loop.push({.time = 1, .who = who});
  std::vector<double> arrivals;
  while (const auto event = loop.next()) {
    if (event->kind == EventKind::message_arrives) {
      arrivals.push_back(event->time);
    } else {
      loop.begin({{.link = 0}}, 10, {.kind = EventKind::message_arrives});
    }
  }
  EXPECT_THAT(arrivals, ElementsAre(3, 3));
}

}  // namespace
}  // namespace troika::plan
