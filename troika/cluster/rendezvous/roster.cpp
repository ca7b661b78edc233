#include "troika/cluster/rendezvous/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace troika::cluster {

namespace {

// Limits the value in a hello, which must not overflow the clock.
constexpr Milliseconds kLongestPatience = std::chrono::days(365);

// Formats ranks: {0, 1, 4, 5, 6} -> "0, 1, 4-6".
std::string show_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    const size_t step = end - i > 2 ? end - i : 1;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (step > 1) text += fmt::format("-{}", ranks[end - 1]);
    i += step;
  }
  return text;
}

std::string show(const Hello& hello) {
  return fmt::format("process {} on {}", hello.pid, hello.host);
}

}  // namespace

std::string show_span(int64_t milliseconds) {
  const double seconds = static_cast<double>(milliseconds) / 1000;
  // Rounds to tenths, because a deadline made a moment ago has slightly less time left.
  const std::string tenths = fmt::format("{:.1f}", seconds);
  return (tenths.ends_with(".0") || seconds >= 10 ? fmt::format("{:.0f}", seconds) : tenths) + " s";
}

Roster::Roster(int world_size, std::string run_id, std::string place)
    : world_size_(world_size), run_id_(std::move(run_id)), place_(std::move(place)) {}

std::optional<Roster::Verdict> Roster::objection(const Hello& hello) const {
  if (hello.protocol != kProtocolVersion) {
    return Verdict{{ErrorKind::usage,
                    {.what = "ranks run different versions of Troika",
                     .got = fmt::format("protocol {} from {}", hello.protocol, show(hello)),
                     .expected = fmt::format("protocol {} as rank 0 speaks", kProtocolVersion)}},
                   false};
  }
  if (hello.run_id != run_id_) {
    return Verdict{{ErrorKind::usage,
                    {.what = fmt::format("another run has {}", place_),
                     .got = fmt::format("run \"{}\"", hello.run_id),
                     .expected = fmt::format("run \"{}\"", run_id_),
                     .hint = "set another MASTER_PORT, or end the other run"}},
                   false};
  }
  if (complete()) {
    return Verdict{{ErrorKind::usage,
                    {.what = fmt::format("the run at {} has all its ranks", place_),
                     .got = fmt::format("another rank {} from {}", hello.rank, show(hello)),
                     .expected = "no more ranks",
                     .hint = "set another MASTER_PORT, or end the other run"}},
                   false};
  }
  if (hello.world_size != world_size_) {
    return Verdict{
        {ErrorKind::usage,
         {.what = "ranks disagree on the number of ranks",
          .got = fmt::format("{} from rank {} ({})", hello.world_size, hello.rank, show(hello)),
          .expected = fmt::format("{} as rank 0 was told", world_size_)}},
        true};
  }
  if (hello.rank < 0 || hello.rank >= world_size_) {
    return Verdict{{ErrorKind::usage,
                    {.what = "rank",
                     .got = fmt::format("{} from {}", hello.rank, show(hello)),
                     .expected = fmt::format("an integer below {}", world_size_)}},
                   true};
  }
  if (const auto other = arrived_.find(hello.rank); other != arrived_.end()) {
    return Verdict{
        {ErrorKind::usage,
         {.what = fmt::format("two processes are rank {}", hello.rank),
          .got = fmt::format("{} and {}", show(other->second), show(hello)),
          .expected = "one process for each rank",
          .hint = "each rank needs its own RANK; is a variable exported to all of them?"}},
        true};
  }
  return std::nullopt;
}

void Roster::enter(const Hello& hello, net::Duration now) {
  arrived_.emplace(hello.rank, hello);
  const auto due = now + std::min(Milliseconds(hello.left_ms), kLongestPatience);
  if (!due_ || due < *due_) {
    due_ = due;
    patience_ms_ = hello.patience_ms;
  }
}

std::string Roster::who(int rank) const {
  return show(arrived_.at(rank));
}

Refusal Roster::late(const std::string& note) const {
  std::vector<int> here, missing;
  for (int rank = 0; rank < world_size_; ++rank) {
    (arrived_.contains(rank) ? here : missing).push_back(rank);
  }
  return {ErrorKind::timeout,
          {.what = fmt::format("ranks did not arrive within {}", show_span(patience_ms_)),
           .got = show_ranks(here),
           .expected = fmt::format("also {}", show_ranks(missing)),
           .hint = fmt::format("they must reach rank 0 at {}{}", place_, note)}};
}

Refusal Roster::gone(int rank, const std::string& reason) const {
  return {ErrorKind::peer,
          {.what = fmt::format("rank {} was lost before all ranks had arrived", rank),
           .got = fmt::format("{} ({})", reason, who(rank)),
           .expected = fmt::format("{} ranks", world_size_)}};
}

}  // namespace troika::cluster
