#include "troika/cluster/rendezvous/inquiries.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/cluster/rendezvous/ranges.h"

namespace troika::cluster {

namespace {

// The time between two waves of one question, and the time after which partial answers are
// forwarded.
constexpr Milliseconds kWaveTime{50};

}  // namespace

net::Duration Inquiries::next_due() const {
  return now_() + kWaveTime;
}

void Inquiries::ask(int rank, const std::string& name, const std::string& question,
                    Milliseconds patience) {
  Asker asker{rank, name, now_() + patience};
  if (is_under_way(question)) {
    waiting_[question].push_back(std::move(asker));
  } else {
    begin(question, {std::move(asker)});
  }
}

bool Inquiries::is_under_way(const std::string& question) const {
  return std::ranges::any_of(waves_, [&](const auto& entry) {
    return entry.second.question == question && entry.second.due > now_();
  });
}

void Inquiries::begin(const std::string& question, std::vector<Asker> askers) {
  const uint64_t number = next_wave_++;
  auto& wave =
      waves_.emplace(number, Wave{question, std::move(askers), next_due(), there_}).first->second;
  // A single asker knows its own answer.
  if (wave.askers.size() == 1) wave.open.erase(wave.askers[0].rank);
  send_({wave.open.begin(), wave.open.end()}, {Message::ask, number, "", question});
}

void Inquiries::begin_waiting(const std::string& question) {
  auto waiting = waiting_.extract(question);
  if (!waiting.empty()) begin(question, std::move(waiting.mapped()));
}

void Inquiries::answer(int rank, uint64_t number, const std::string& text) {
  const auto wave = waves_.find(number);
  if (wave == waves_.end() || wave->second.open.erase(rank) == 0) return;
  wave->second.fresh[text].push_back(rank);
  end_if_complete(number);
}

void Inquiries::gone(int rank) {
  there_.erase(rank);
  const auto is_its = [&](const Asker& asker) { return asker.rank == rank; };
  for (auto& [question, askers] : waiting_) std::erase_if(askers, is_its);
  std::vector<uint64_t> numbers;
  for (auto& [number, wave] : waves_) {
    std::erase_if(wave.askers, is_its);
    wave.open.erase(rank);
    numbers.push_back(number);
  }
  for (const uint64_t number : numbers) end_if_complete(number);
}

void Inquiries::pass_on(Wave& wave) {
  if (wave.fresh.empty()) return;
  for (auto& [text, ranks] : wave.fresh) std::ranges::sort(ranks);
  const std::string packed = pack_answers(wave.fresh);
  wave.fresh.clear();
  for (const auto& asker : wave.askers) {
    send_({asker.rank}, {Message::answer, 0, asker.name, packed});
  }
}

void Inquiries::end_if_complete(uint64_t number) {
  const auto found = waves_.find(number);
  if (found == waves_.end()) return;
  if (!found->second.open.empty() && !found->second.askers.empty()) return;
  pass_on(found->second);
  const std::string question = found->second.question;
  waves_.erase(found);
  if (!is_under_way(question)) begin_waiting(question);
}

std::optional<net::Duration> Inquiries::due() const {
  std::optional<net::Duration> first;
  const auto consider = [&](net::Duration due) {
    if (!first || due < *first) first = due;
  };
  for (const auto& [number, wave] : waves_) {
    if (!wave.fresh.empty() || waiting_.contains(wave.question)) consider(wave.due);
    for (const auto& asker : wave.askers) consider(asker.until);
  }
  return first;
}

void Inquiries::proceed() {
  std::vector<std::string> over, ended;
  const auto now = now_();
  const auto is_late = [&](const Asker& asker) { return asker.until <= now; };
  for (auto entry = waves_.begin(); entry != waves_.end();) {
    auto& wave = entry->second;
    const bool is_due = wave.due <= now;
    // An asker gets the answers received so far before its time is over.
    if (is_due || std::ranges::any_of(wave.askers, is_late)) pass_on(wave);
    if (is_due) {
      over.push_back(wave.question);
      wave.due = next_due();
    }
    std::erase_if(wave.askers, is_late);
    if (!wave.askers.empty()) {
      ++entry;
      continue;
    }
    ended.push_back(wave.question);
    entry = waves_.erase(entry);
  }
  for (const auto& question : over) begin_waiting(question);
  // Starts the next wave for ranks that waited behind a wave without remaining askers.
  for (const auto& question : ended) {
    if (!is_under_way(question)) begin_waiting(question);
  }
}

std::string pack_answers(const std::map<std::string, std::vector<int>>& answers) {
  std::string packed;
  for (const auto& [text, ranks] : answers) {
    packed += encode({Message::answer, 0, to_ranges(ranks), text});
  }
  return packed;
}

void unpack_answers(const std::string& packed, int world_size,
                    const std::function<void(int rank, const std::string& answer)>& take) {
  for (std::string_view bytes = packed; !bytes.empty();) {
    const Frame frame = take_frame(bytes);
    for_each_rank(frame.key, world_size, [&](int rank) { take(rank, frame.value); });
  }
}

}  // namespace troika::cluster
