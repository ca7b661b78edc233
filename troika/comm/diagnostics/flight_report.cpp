#include "troika/comm/diagnostics/flight_report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/comm/diagnostics/flight_record.h"

namespace troika::comm {

namespace {

// A rank is late if it came at least this long after the rank before it, and at least this share of
// the longest wait later: a smaller delay does not explain a timeout.
constexpr double kLateSeconds = 1;
constexpr double kLateShare = 0.1;

// The contents of the records of one group of ranks.
struct FlightGroup {
  struct Seen {
    const FlightRecord* record = nullptr;
    std::optional<FlightRecord::Answer> answer;  // for a rank without a record
    int64_t next = -1;                           // the first call not finished; -1: unknown
  };

  std::string name, backend;
  std::vector<Seen> ranks;
  std::vector<int> world_ranks;     // of each rank, if known from the records
  std::vector<std::string> places;  // of each rank, if there is a mesh
  const FlightRecord* failed_first = nullptr;
  std::optional<int64_t> parted;  // the first call that began and that not all ranks have finished
  std::vector<int> in, past, missing, silent;  // the ranks, by their state at that call
  bool mismatch = false;  // ranks made different calls with that sequence number
  bool all_in = false;

  int size() const { return static_cast<int>(ranks.size()); }
  // The rank's world rank, and its name.
  int number(int rank) const { return world_ranks.empty() ? rank : world_ranks[rank]; }
  std::string name_of(int rank) const {
    return fmt::format("rank {}{}", number(rank), places.empty() ? "" : " = " + places[rank]);
  }
  // Returns the call at which the ranks diverged, if this rank began it.
  const FlightRecord::Call* call(int rank) const {
    const auto* record = ranks[rank].record;
    if (!record || !parted || !record->calls.contains(*parted)) return nullptr;
    const auto& found = record->calls.at(*parted);
    return found.started ? &found : nullptr;
  }
  double seconds_in(int rank) const {
    return call(rank)->ended.value_or(ranks[rank].record->now) - *call(rank)->started;
  }
  // Groups that failed come first, in the order of failure.
  auto order() const {
    return std::tuple(!failed_first, failed_first ? *failed_first->failed_at() : 0.0, name);
  }
};

void add(FlightGroup& group, const FlightRecord& record) {
  for (const auto& [other, answer, next] : group.ranks) {
    if (other && (other->size != record.size || other->rank == record.rank)) {
      throw Error(
          "comm", ErrorKind::usage,
          {.what = fmt::format("flight records of group {} are mixed", record.group),
           .got = fmt::format("rank {} of {} in {} and rank {} of {} in {}", other->rank,
                              other->size, other->file, record.rank, record.size, record.file),
           .expected = "the records of one run",
           .hint = "give every run its own folder"});
    }
  }
  group.name = record.group;
  group.backend = record.backend;
  group.world_ranks = record.world_ranks;
  group.places = record.places;
  group.ranks.resize(record.size);
  group.ranks[record.rank].record = &record;
}

void align(FlightGroup& group) {
  // For a rank without a record, uses its latest answer to any other rank.
  for (const auto& [record, answer, next] : group.ranks) {
    for (size_t i = 0; record && i < std::min(record->statuses.size(), group.ranks.size()); ++i) {
      auto& seen = group.ranks[i];
      if (!seen.record) seen.answer = std::max(seen.answer, record->statuses[i]);
    }
  }
  std::set<int64_t> begun;
  for (auto& seen : group.ranks) {
    if (seen.answer) {
      seen.next = seen.answer->sequence + (seen.answer->finished ? 1 : 0);
      if (!seen.answer->finished) begun.insert(seen.next);
    }
    if (!seen.record) continue;
    seen.next = seen.record->next();
    for (const auto& [sequence, call] : seen.record->calls) {
      if (call.started) begun.insert(sequence);
    }
    const auto at = seen.record->failed_at();
    if (at && (!group.failed_first || *at < *group.failed_first->failed_at())) {
      group.failed_first = seen.record;
    }
  }
  const auto parted = std::find_if(begun.begin(), begun.end(), [&](int64_t sequence) {
    return std::any_of(group.ranks.begin(), group.ranks.end(),
                       [&](const auto& seen) { return seen.next >= 0 && seen.next <= sequence; });
  });
  if (parted != begun.end()) group.parted = *parted;
  const FlightRecord::Call* other = nullptr;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto& [record, answer, next] = group.ranks[rank];
    const auto* mine = group.call(rank);
    const bool in = mine || (answer && answer->sequence == group.parted);
    auto& unfinished = in ? group.in : group.missing;
    (next < 0 ? group.silent : next > group.parted ? group.past : unfinished).push_back(rank);
    group.mismatch |= other && mine && other->fingerprint() != mine->fingerprint();
    if (mine) other = mine;
  }
  group.all_in = group.in.size() == group.ranks.size();
}

// "rank 3" or "rank 3 = data 1, tensor 1"; "ranks 0-4, 7".
std::string show(const FlightGroup& group, const std::vector<int>& members) {
  if (members.size() == 1) return group.name_of(members[0]);
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(group.number(member));
  std::ranges::sort(ranks);
  std::vector<std::string> parts;
  for (size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (end - i < 3) end = i + 1;
    parts.push_back(std::to_string(ranks[i]));
    if (end - i > 1) parts.back() += fmt::format("-{}", ranks[end - 1]);
  }
  return fmt::format("ranks {}", fmt::join(parts, ", "));
}

// A sentence on a line of its own.
std::string sentence(std::string text) {
  if (text.starts_with('r')) text[0] = 'R';
  return text + ".\n";
}

std::string show_seconds(const std::vector<double>& seconds) {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  const auto low = fmt::format("{:.1f}", *least), high = fmt::format("{:.1f}", *most);
  return low == high ? low + " s" : fmt::format("{} to {} s", low, high);
}

// Statements about ranks, with times in seconds, merged by the text after the rank list.
struct Saying {
  std::vector<int> ranks;
  std::vector<double> seconds = {};
};
using Sayings = std::map<std::string, Saying>;

std::string say(const FlightGroup& group, const Sayings& sayings, std::string_view time = {}) {
  std::string text;
  for (const auto& [what, saying] : sayings) {
    const bool timed = !saying.seconds.empty();
    const auto span = timed ? show_seconds(saying.seconds) : "";
    text += sentence(show(group, saying.ranks) + what +
                     (timed ? fmt::format(fmt::runtime(time), span) : ""));
  }
  return text;
}

std::string heading(const FlightGroup& group) {
  const auto text = fmt::format("Group {} ({} rank{}, {}) ", group.name, group.ranks.size(),
                                group.ranks.size() == 1 ? "" : "s", group.backend);
  if (!group.parted) {
    return text + (!group.failed_first                 ? "shows no failure"
                   : group.failed_first->waits.empty() ? "failed outside of a call"
                                                       : "failed in a message");
  }
  if (group.mismatch) return text + fmt::format("made different calls as #{}", *group.parted);
  std::string title;
  for (int rank = group.size() - 1; rank >= 0; --rank) {
    const auto& answer = group.ranks[rank].answer;
    if (answer && answer->sequence == *group.parted && title.empty()) title = answer->call;
    if (const auto* mine = group.call(rank)) title = mine->describe();
  }
  return text + (group.all_in ? "failed in " : "parted at ") + title;
}

std::string who_called_what(const FlightGroup& group) {
  Sayings sayings;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (const auto* mine = group.call(rank)) {
      sayings[" called " + mine->describe_with_data()].ranks.push_back(rank);
    }
  }
  return say(group, sayings);
}

std::string who_was_there(const FlightGroup& group) {
  Sayings in;
  for (const int rank : group.in) {
    auto& saying = in[" waited in it"];
    saying.ranks.push_back(rank);
    if (group.call(rank)) saying.seconds.push_back(group.seconds_in(rank));
  }
  Sayings sayings;
  for (const int rank : group.past) {
    const auto* record = group.ranks[rank].record;
    const auto* last = record ? record->last() : nullptr;
    const bool further = last && last->sequence > *group.parted;
    const auto then = further ? " and begun " + last->describe() : "";
    sayings[" had finished it" + then].ranks.push_back(rank);
  }
  return say(group, in, " for {}") + say(group, sayings);
}

std::string who_never_came(const FlightGroup& group) {
  Sayings sayings;
  for (const int rank : group.missing) {
    const auto& [record, answer, next] = group.ranks[rank];
    std::string text = " never came";
    std::optional<double> ended;
    if (!record) {
      text += answer->left ? ", but left the group in peace" : " and left no record";
      text +=
          answer->sequence < 0 ? " before its first call" : "; last heard of in " + answer->call;
    } else if (const auto last = record->calls.find(next - 1); last != record->calls.end()) {
      text += "; last finished " + last->second.describe();
      ended = last->second.ended;
    } else {
      text += "; had finished nothing";
    }
    auto& saying = sayings[text];
    saying.ranks.push_back(rank);
    if (ended && group.failed_first) {
      saying.seconds.push_back(*group.failed_first->failed_at() - *ended);
    }
  }
  const auto first = group.failed_first ? group.name_of(group.failed_first->rank) : "";
  return say(group, sayings, fmt::format(", {{}} before {} failed", first));
}

std::string who_waited_for_messages(const FlightGroup& group) {
  std::string text;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto* record = group.ranks[rank].record;
    if (!record) continue;
    for (const auto& message : record->waits) {
      const double seconds = message.ended.value_or(record->now) - message.awaited;
      text += sentence(fmt::format("{} waited in {} for {:.1f} s", group.name_of(rank),
                                   message.describe(), seconds));
    }
  }
  return text;
}

std::string who_was_late(const FlightGroup& group) {
  std::vector<std::pair<double, int>> starts;
  double least = kLateSeconds;
  for (const int rank : group.in) {
    if (!group.call(rank)) continue;
    starts.emplace_back(*group.call(rank)->started, rank);
    least = std::max(least, kLateShare * group.seconds_in(rank));
  }
  std::sort(starts.begin(), starts.end());
  // If most ranks came late, the others count as early.
  size_t first = std::max<size_t>((starts.size() + 1) / 2, 1);
  while (first < starts.size() && starts[first].first - starts[first - 1].first < least) ++first;
  std::map<int, double> delays;
  for (size_t i = first; i < starts.size(); ++i) {
    delays[starts[i].second] = starts[i].first - starts[first - 1].first;
  }
  Sayings late;
  for (const auto& [rank, delay] : delays) {
    late[" came straggling"].ranks.push_back(rank);
    late[" came straggling"].seconds.push_back(delay);
  }
  return say(group, late, ", {} after the others");
}

std::string paragraph(const FlightGroup& group) {
  std::string text = sentence(heading(group));
  if (group.parted) {
    if (group.mismatch) text += who_called_what(group);
    const auto late = who_was_late(group);
    text += who_was_there(group) + who_never_came(group) + late;
    if (group.all_in && !group.mismatch && late.empty()) {
      text += "Nobody was missing: look at the network, or raise the time-out.\n";
    }
  }
  text += who_waited_for_messages(group);
  if (const auto& silent = group.silent; !silent.empty()) {
    text += sentence(show(group, silent) +
                     " left no record that can be used and answered nobody: killed or unreachable");
  }
  if (const auto* first = group.failed_first) {
    const auto at = fmt::gmtime(static_cast<std::time_t>(*first->failed_at()));
    text += fmt::format("The first to report a failure was {} on {}, at {:%F %T} UTC: {}\n",
                        group.name_of(first->rank), first->host, at, first->cause);
  }
  return text;
}

std::string table(const FlightGroup& group) {
  using Row = std::array<std::string, 3>;
  std::vector<Row> rows{{"last call", "state", "seconds since"}};
  std::vector<std::string> names{"rank"};
  for (const auto& [record, answer, next] : group.ranks) {
    const auto rank = static_cast<int>(rows.size()) - 1;
    names.push_back(std::to_string(group.number(rank)));
    if (!group.places.empty()) names.back() += " = " + group.places[rank];
    auto& row = rows.emplace_back(Row{"-", record ? "nothing begun" : "no record", "-"});
    if (const auto* last = record ? record->last() : nullptr) {
      const auto since = last->state == "finished" ? last->ended : last->started;
      row = {last->describe(), last->state, fmt::format("{:.1f}", record->now - *since)};
    } else if (answer) {
      if (!answer->call.empty()) row[0] = answer->call;
      row[1] += answer->left ? ", left" : answer->finished ? ", finished" : ", running";
    }
  }
  std::array<size_t, 3> width{};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  const size_t names_width = std::ranges::max(names, {}, &std::string::size).size();
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    text += fmt::format("{:>{}}  {:<{}}  {:<{}}  {:>{}}\n", names[i], names_width, rows[i][0],
                        width[0], rows[i][1], width[1], rows[i][2], width[2]);
  }
  return text;
}

// Returns the line for a group that is not the first that failed.
std::string line(const FlightGroup& group, const FlightGroup& first) {
  std::string text = heading(group);
  if (!group.missing.empty()) text += ", without " + show(group, group.missing);
  if (group.failed_first) {
    text += fmt::format(", {:.1f} s later",
                        *group.failed_first->failed_at() - *first.failed_first->failed_at());
  }
  return sentence(text);
}

}  // namespace

std::string flight_report(const std::filesystem::path& folder) {
  std::error_code error;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") files.insert(entry.path());
  }
  std::vector<std::string> unused;
  std::vector<FlightRecord> records;
  for (const auto& path : files) {
    try {
      records.push_back(parse_flight_record(path.filename().string(), read_file(path)));
    } catch (const nlohmann::json::exception&) {
      unused.push_back(path.filename().string() + ": no flight record");
    } catch (const std::exception& problem) {
      unused.push_back(fmt::format("{}: {}", path.filename().string(), problem.what()));
    }
  }
  if (records.empty()) {
    throw Error("comm", ErrorKind::usage,
                {.what = "no flight records in " + folder.string(),
                 .got = error            ? error.message()
                        : unused.empty() ? "no JSON file"
                                         : fmt::format("{}", fmt::join(unused, "; ")),
                 .expected = "<group>-rank<r>.json of each rank that could write one"});
  }
  std::map<std::string, FlightGroup> by_name;
  for (const auto& record : records) add(by_name[record.group], record);
  std::vector<FlightGroup> groups;
  for (auto& [name, group] : by_name) {
    align(group);
    groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.order() < b.order(); });
  std::string text = paragraph(groups.front()) + "\n" + table(groups.front());
  for (size_t i = 1; i < groups.size(); ++i) {
    if (i == 1) text += '\n';
    text += line(groups[i], groups.front());
  }
  for (size_t i = 0; i < unused.size(); ++i) {
    text += fmt::format("{}Not used: {}\n", i == 0 ? "\n" : "", unused[i]);
  }
  return text;
}

}  // namespace troika::comm
