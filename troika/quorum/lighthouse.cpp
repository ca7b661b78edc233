#include "troika/quorum/lighthouse.h"

#include <fmt/format.h>

#include <algorithm>

namespace troika::quorum {

namespace {

// A connection that breaks for a moment costs one. More mean that members cannot reach each other.
constexpr int kMostRefusals = 3;

}  // namespace

void Lighthouse::take(const std::string& name, const Report& report, net::Duration now) {
  if (report.kind == Report::Kind::name) return name_run(name, report.text);
  if (report.kind == Report::Kind::join) return join(name, report, now);
  const auto found = known_.find(name);
  if (found == known_.end()) return;
  found->second.heard = now;
  switch (report.kind) {
    case Report::Kind::ready:
      if (name != founder_) return;
      founder_.clear();
      quorum_.emplace(Quorum{.step = report.step, .members = {{.name = name}}});
      return begin(report.step, now);
    case Report::Kind::healed:
      if (!quorum_ || report.step != quorum_->step) return;
      for (auto& member : quorum_->members) {
        if (member.name == name) member.donor.clear();
      }
      return;
    case Report::Kind::summing:
      if (!quorum_ || is_pending_ || report.id != quorum_->id) return;
      attempt_.summing.insert(name);
      if (!attempt_.sum_end) attempt_.sum_end = now + seconds(rules_->timeout);
      return;
    case Report::Kind::vote:
      return vote(name, report, now);
    case Report::Kind::done:
      done_.insert(name);
      return choose_saver();
    case Report::Kind::leave:
      return report.ok ? finish(name) : remove(name, now);
    default:
      return;
  }
}

void Lighthouse::name_run(const std::string& name, const std::string& text) {
  auto& [chosen, askers] = run_name_;
  if (chosen.empty() && !text.empty()) {
    chosen = text;
    for (const auto& asker : std::exchange(askers, {})) {
      news_.emplace_back(asker, News{.kind = News::Kind::name, .text = chosen});
    }
    return;
  }
  if (chosen.empty()) {
    askers.push_back(name);
    if (askers.size() > 1) return;
  }
  news_.emplace_back(name, News{.kind = News::Kind::name, .text = chosen});
}

void Lighthouse::join(const std::string& name, const Report& report, net::Duration now) {
  if (is_finished_) {
    news_.emplace_back(name, News{.kind = News::Kind::finished});
    return;
  }
  if (known_.contains(name)) return;
  if (!rules_) rules_ = report.rules;
  if (report.rules != *rules_) {
    const auto text = [](const Rules& rules) {
      return fmt::format(
          "{} replicas, min_replicas {}, global batch {}, {} inner steps, join timeout {} s, "
          "heartbeat "
          "timeout {} s, timeout {} s",
          rules.replicas, rules.min_replicas, rules.global_batch, rules.inner_steps,
          rules.join_timeout, rules.heartbeat_timeout, rules.timeout);
    };
    const auto why = fmt::format("replica {} has {}; the others have {}", report.rank,
                                 text(report.rules), text(*rules_));
    news_.emplace_back(name, News{.kind = News::Kind::refused, .text = why});
    return;
  }
  // Its earlier process may have ended without a word.
  const auto earlier = std::ranges::find_if(
      known_, [&](const auto& entry) { return entry.second.rank == report.rank; });
  if (earlier != known_.end()) {
    refuse(std::string(earlier->first), "a later process has the same rank", now);
  }
  known_[name] = {.rank = report.rank,
                  .process_group = report.process_group,
                  .addresses = report.addresses,
                  .heard = now};
  if (!quorum_) {
    if (founder_.empty()) found(now);
  } else if (is_pending_) {
    begin(quorum_->step, now);
  }
}

void Lighthouse::found(net::Duration now) {
  if (known_.empty()) {
    wait_end_.reset();
    return;
  }
  const auto count = static_cast<int>(known_.size());
  if (!wait_end_) wait_end_ = now + seconds(rules_->join_timeout);
  const bool has_enough = count >= rules_->min_replicas && now >= *wait_end_;
  if (count < rules_->replicas && !has_enough) {
    if (now < *wait_end_) return tell_waiting();
    return refuse_all(waiting_text() + ", and none joined in time");
  }
  wait_end_.reset();
  founder_ = std::ranges::min_element(known_, {}, [](const auto& entry) {
               return entry.second.rank;
             })->first;
  news_.emplace_back(founder_, News{.kind = News::Kind::found, .quorum = {.id = last_id_}});
}

void Lighthouse::begin(int64_t step, net::Duration now) {
  std::vector<QuorumMember> members;
  std::vector<std::string> donors;
  for (const auto& member : quorum_->members) donors.push_back(member.name);
  std::vector<std::pair<int, std::string>> ranks;
  for (const auto& [name, known] : known_) ranks.emplace_back(known.rank, name);
  std::ranges::sort(ranks);
  // Members that have the state come first, because a share has at least one sample.
  std::ranges::stable_partition(
      ranks, [&](const auto& entry) { return std::ranges::count(donors, entry.second) > 0; });
  if (static_cast<int64_t>(ranks.size()) > rules_->global_batch) {
    ranks.resize(static_cast<size_t>(rules_->global_batch));
  }
  quorum_->step = step;
  quorum_->totals = totals_;
  attempt_ = {};
  refusals_ = 0;
  if (static_cast<int>(ranks.size()) < rules_->min_replicas) {
    is_pending_ = true;
    if (!wait_end_) wait_end_ = now + seconds(rules_->join_timeout);
    return tell_waiting();
  }
  is_pending_ = false;
  wait_end_.reset();
  size_t patients = 0;
  for (const auto& [rank, name] : ranks) {
    QuorumMember member{.name = name, .rank = rank, .addresses = known_.at(name).addresses};
    if (std::ranges::count(donors, name) == 0) member.donor = donors[patients++ % donors.size()];
    members.push_back(std::move(member));
  }
  std::ranges::sort(members, {}, &QuorumMember::rank);
  const auto count = static_cast<int64_t>(members.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = i * rules_->global_batch / count;
    const int64_t end = (i + 1) * rules_->global_batch / count;
    members[static_cast<size_t>(i)].share = {.first = first, .count = end - first};
  }
  quorum_->members = std::move(members);
  totals_.begun += rules_->global_batch * rules_->inner_steps;
  send_quorum();
}

void Lighthouse::send_quorum() {
  quorum_->id = ++last_id_;
  attempt_ = {};
  for (const auto& member : quorum_->members) {
    news_.emplace_back(member.name, News{.kind = News::Kind::quorum, .quorum = *quorum_});
  }
}

void Lighthouse::vote(const std::string& name, const Report& report, net::Duration now) {
  if (!quorum_ || is_pending_ || report.id != quorum_->id) return;
  // A sum without the state of the others would part from them.
  const auto* member = quorum_->find(name);
  if (member == nullptr || (report.ok && !is_up_to_date(*member))) return;
  if (!report.ok) {
    if (++refusals_ <= kMostRefusals) return send_quorum();
    return refuse_all(
        fmt::format("step {} failed {} times with the same replicas; the last failure "
                    "was that of replica {}: {}",
                    quorum_->step, refusals_, known_.at(name).rank, report.text));
  }
  auto& [summing, votes, sum_end, vote_end] = attempt_;
  votes.insert(name);
  if (!vote_end) vote_end = now + seconds(rules_->timeout);
  if (votes.size() < quorum_->members.size()) return;
  totals_.counted += quorum_->samples() * rules_->inner_steps;
  begin(quorum_->step + 1, now);
}

void Lighthouse::lose(const std::string& name, net::Duration now) {
  auto& askers = run_name_.askers;
  const bool chose = !askers.empty() && askers.front() == name;
  std::erase(askers, name);
  if (chose && !askers.empty()) {
    news_.emplace_back(askers.front(), News{.kind = News::Kind::name});
  }
  if (!known_.contains(name)) return;
  ++totals_.lost;
  remove(name, now);
}

void Lighthouse::remove(const std::string& name, net::Duration now) {
  known_.erase(name);
  done_.erase(name);
  if (name == founder_) {
    founder_.clear();
    return found(now);
  }
  if (!quorum_ && known_.empty()) wait_end_.reset();
  if (!quorum_ || !quorum_->find(name)) return;
  // Members that wait for its state get another donor with the next step.
  std::erase_if(quorum_->members, [&](const QuorumMember& member) {
    return member.name == name || member.donor == name;
  });
  if (std::ranges::none_of(quorum_->members,
                           [&](const auto& member) { return is_up_to_date(member); })) {
    quorum_.reset();
    is_pending_ = false;
    wait_end_.reset();
    attempt_ = {};
    done_.clear();
    return found(now);
  }
  if (is_pending_) {
    tell_waiting();
  } else {
    refusals_ = 0;
    send_quorum();
  }
  choose_saver();
}

void Lighthouse::finish(const std::string& name) {
  // The quorum of a step that nobody makes, because the run ends before it.
  if (quorum_ && !is_pending_ && attempt_.votes.empty())
    totals_.begun -= rules_->global_batch * rules_->inner_steps;
  is_finished_ = true;
  for (const auto& [other, known] : known_) {
    if (other != name) news_.emplace_back(other, News{.kind = News::Kind::finished});
  }
  forget_all();
}

void Lighthouse::choose_saver() {
  if (!quorum_) {
    if (done_.contains(founder_)) news_.emplace_back(founder_, News{.kind = News::Kind::save});
    return;
  }
  const auto saver = std::ranges::find_if(
      quorum_->members, [&](const auto& member) { return is_up_to_date(member); });
  if (saver == quorum_->members.end() || !done_.contains(saver->name)) return;
  news_.emplace_back(saver->name, News{.kind = News::Kind::save});
}

void Lighthouse::refuse(const std::string& name, const std::string& why, net::Duration now) {
  if (const auto found = known_.find(name); found != known_.end()) {
    refused_.push_back(found->second.process_group);
  }
  news_.emplace_back(name, News{.kind = News::Kind::refused, .text = why});
  lose(name, now);
}

void Lighthouse::refuse_all(const std::string& why) {
  for (const auto& [name, known] : known_) {
    news_.emplace_back(name, News{.kind = News::Kind::refused, .text = why});
    refused_.push_back(known.process_group);
  }
  forget_all();
}

void Lighthouse::forget_all() {
  known_.clear();
  done_.clear();
  founder_.clear();
  quorum_.reset();
  is_pending_ = false;
  wait_end_.reset();
  attempt_ = {};
}

void Lighthouse::tick(net::Duration now) {
  if (!rules_) return;
  const auto limit = seconds(rules_->heartbeat_timeout);
  std::vector<std::string> silent;
  for (const auto& [name, known] : known_) {
    if (now - known.heard > limit) silent.push_back(name);
  }
  for (const auto& name : silent) {
    refuse(name, fmt::format("it was silent for more than {} s", rules_->heartbeat_timeout), now);
  }
  if (attempt_.sum_end && now >= *attempt_.sum_end) {
    refuse_late(attempt_.summing, "begin its sum of", now);
  }
  if (attempt_.vote_end && now >= *attempt_.vote_end) refuse_late(attempt_.votes, "finish", now);
  if (!wait_end_ || now < *wait_end_) return;
  // Members that have made the last step need no others.
  if (is_pending_ && !done_.empty()) return;
  if (is_pending_) return refuse_all(waiting_text() + ", and none joined in time");
  if (!quorum_ && founder_.empty()) found(now);
}

void Lighthouse::refuse_late(const std::set<std::string>& has, const std::string& what,
                             net::Duration now) {
  std::vector<std::string> late;
  for (const auto& member : quorum_->members) {
    if (!has.contains(member.name)) late.push_back(member.name);
  }
  // Each refusal may form another quorum.
  const int64_t step = quorum_->step;
  if (late.empty()) attempt_.sum_end.reset();
  for (const auto& name : late) {
    refuse(name,
           fmt::format("it did not {} step {} within {} s of the first replica that did", what,
                       step, rules_->timeout),
           now);
  }
}

void Lighthouse::excuse(net::Duration gap) {
  for (auto& [name, known] : known_) known.heard += gap;
  if (wait_end_) *wait_end_ += gap;
  for (auto* end : {&attempt_.sum_end, &attempt_.vote_end}) {
    if (*end) **end += gap;
  }
}

std::string Lighthouse::waiting_text() const {
  return fmt::format("{} of at least {} replicas are there (min_replicas {}, {} launched)",
                     known_.size(), quorum_ ? rules_->min_replicas : rules_->replicas,
                     rules_->min_replicas, rules_->replicas);
}

void Lighthouse::tell_waiting() {
  for (const auto& [name, known] : known_) {
    News news{.kind = News::Kind::waiting, .text = waiting_text()};
    if (quorum_) news.quorum = {.id = last_id_, .step = quorum_->step, .totals = totals_};
    news_.emplace_back(name, std::move(news));
  }
}

}  // namespace troika::quorum
