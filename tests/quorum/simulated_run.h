// A lighthouse with members that are only names, and a clock that is a number.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "troika/quorum/lighthouse.h"

namespace troika::quorum {

inline constexpr int64_t kBatch = 12;

inline Rules rules_of(int replicas, int min_replicas) {
  return {.replicas = replicas,
          .min_replicas = min_replicas,
          .global_batch = kBatch,
          .join_timeout = 10,
          .heartbeat_timeout = 5,
          .timeout = 30};
}

// Holds the latest news of each member, and sends their reports.
class SimulatedRun {
 public:
  explicit SimulatedRun(Rules rules) : rules_(rules) {}

  void join(const std::string& name, int rank) {
    send(name, {.kind = Report::Kind::join, .rank = rank, .rules = rules_});
  }
  void send(const std::string& name, const Report& report) {
    lighthouse.take(name, report, now);
    deliver();
  }
  void ready(const std::string& name, int64_t step) {
    send(name, {.kind = Report::Kind::ready, .step = step});
  }
  void heal(const std::string& name) {
    send(name, {.kind = Report::Kind::healed, .step = quorum(name).step});
  }
  void vote(const std::string& name, bool ok = true) {
    send(name, {.kind = Report::Kind::vote, .id = quorum(name).id, .ok = ok, .text = "a reason"});
  }
  void vote_all(const std::vector<std::string>& names) {
    for (const auto& name : names) vote(name);
  }
  void lose(const std::string& name) {
    lighthouse.lose(name, now);
    deliver();
  }
  void pass(double time) {
    now += seconds(time);
    lighthouse.tick(now);
    deliver();
  }
  // Joins a, b, ... and begins with step 0, in which all have the founder's state.
  void begin(int count) {
    for (int i = 0; i < count; ++i) join(std::string(1, static_cast<char>('a' + i)), i);
    ready("a", 0);
    for (int i = 1; i < count; ++i) heal(std::string(1, static_cast<char>('a' + i)));
  }

  const Quorum& quorum(const std::string& name) { return news[name].quorum; }
  News::Kind kind(const std::string& name) { return news[name].kind; }
  static std::vector<std::string> names(const Quorum& quorum) {
    std::vector<std::string> result;
    for (const auto& member : quorum.members) result.push_back(member.name);
    return result;
  }

  Lighthouse lighthouse;
  net::Duration now{};
  std::map<std::string, News> news;

 private:
  void deliver() {
    for (auto& [name, text] : lighthouse.take_news()) news[name] = text;
  }
  const Rules rules_;
};

}  // namespace troika::quorum
