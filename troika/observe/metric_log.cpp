#include "troika/observe/metric_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"

namespace troika::observe {

namespace {

constexpr size_t kReductions = 4;
constexpr std::array<const char*, kReductions> kReductionNames = {"mean", "sum", "min", "max"};

// The value of one name in a row, of one rank or of all ranks.
struct OwnNumber {
  std::string name;
  LogReduction reduction;
  bool prog_bar;
  double value;
  double weight;
};

[[noreturn]] void refuse_log(const std::string& name, std::string got, std::string expected,
                             std::string hint = {}) {
  throw Error("observe", ErrorKind::usage,
              {.what = fmt::format("cannot log `{}`", name),
               .got = std::move(got),
               .expected = std::move(expected),
               .hint = std::move(hint)});
}

std::string show_options(const LogOptions& options) {
  std::vector<std::string> parts = {
      fmt::format("reduce {}", kReductionNames[static_cast<size_t>(options.reduce)])};
  if (*options.on_step) parts.push_back("on_step");
  if (*options.on_epoch) parts.push_back("on_epoch");
  if (options.sync_dist) parts.push_back("sync_dist");
  if (options.rank_zero_only) parts.push_back("rank_zero_only");
  if (options.prog_bar) parts.push_back("prog_bar");
  return fmt::format("{}", fmt::join(parts, ", "));
}

double reduced(LogReduction reduction, double a, double b) {
  // NaN on either side stays NaN.
  if (std::isnan(a) || std::isnan(b)) return a + b;
  switch (reduction) {
    case LogReduction::min:
      return std::min(a, b);
    case LogReduction::max:
      return std::max(a, b);
    default:
      return a + b;
  }
}

double final_value(const OwnNumber& share) {
  return share.reduction == LogReduction::mean ? share.value / share.weight : share.value;
}

// The data that a rank sends to the other ranks.
struct Contribution {
  bool has_logged;  // something without rank_zero_only was logged, so names must match
  std::vector<OwnNumber> shares;
};

// A line with has_logged, then for each share a line `name reduction prog_bar value weight`,
// separated by tabs.
std::string encode(const Contribution& contribution) {
  std::string text = contribution.has_logged ? "1\n" : "0\n";
  for (const OwnNumber& s : contribution.shares) {
    text += fmt::format("{}\t{}\t{}\t{}\t{}\n", s.name, static_cast<int>(s.reduction),
                        static_cast<int>(s.prog_bar), s.value, s.weight);
  }
  return text;
}

Contribution decode(const std::string& text) {
  const auto lines = split(text, '\n');  // the last one is empty
  Contribution result{.has_logged = lines[0] == "1", .shares = {}};
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    const auto cells = split(lines[i], '\t');
    const auto number = [&](size_t cell) { return parse_double(cells.at(cell)).value(); };
    result.shares.push_back({cells.at(0), static_cast<LogReduction>(static_cast<int>(number(1))),
                             number(2) != 0, number(3), number(4)});
  }
  return result;
}

const OwnNumber* find_share(const std::vector<OwnNumber>& shares, const std::string& name) {
  const auto found = std::find_if(shares.begin(), shares.end(),
                                  [&](const OwnNumber& share) { return share.name == name; });
  return found == shares.end() ? nullptr : &*found;
}

// `first` and `other` come from ranks that logged something.
void require_equal_names(const std::vector<OwnNumber>& first, int first_rank,
                         const std::vector<OwnNumber>& other, int other_rank) {
  const auto missing = [](const std::vector<OwnNumber>& from, const std::vector<OwnNumber>& in,
                          int rank, std::vector<std::string>& parts) {
    std::vector<std::string> names;
    for (const OwnNumber& share : from) {
      if (!find_share(in, share.name)) names.push_back(fmt::format("`{}`", share.name));
    }
    if (!names.empty()) {
      parts.push_back(fmt::format("{} on rank {} alone", fmt::join(names, ", "), rank));
    }
  };
  std::vector<std::string> parts;
  missing(first, other, first_rank, parts);
  missing(other, first, other_rank, parts);
  if (!parts.empty()) {
    throw Error("observe", ErrorKind::usage,
                {.what = fmt::format("ranks {} and {} log different names with sync_dist",
                                     first_rank, other_rank),
                 .got = fmt::format("{}", fmt::join(parts, " and ")),
                 .expected = "the same names on every rank that logs",
                 .hint = "log on all ranks, or without sync_dist"});
  }
  for (const OwnNumber& share : first) {
    const OwnNumber& peer = *find_share(other, share.name);
    if (peer.reduction == share.reduction && peer.prog_bar == share.prog_bar) continue;
    refuse_log(share.name,
               fmt::format("different options on ranks {} and {}", first_rank, other_rank),
               "the same on all ranks");
  }
}

// Reduces the shares of all ranks, in rank order.
std::vector<OwnNumber> reduce_over(const comm::Group& replicas, const Contribution& own) {
  const auto texts = replicas.all_gather_text(encode(own), "logged metrics");
  std::vector<OwnNumber> all;
  int first = -1;
  for (int rank = 0; rank < replicas.size(); ++rank) {
    const auto [has_logged, shares] = decode(texts[static_cast<size_t>(rank)]);
    if (!has_logged) continue;
    if (first < 0) {
      first = rank;
      all = shares;
      continue;
    }
    require_equal_names(all, first, shares, rank);
    for (OwnNumber& share : all) {
      const OwnNumber& peer = *find_share(shares, share.name);
      share.value = reduced(share.reduction, share.value, peer.value);
      share.weight += peer.weight;
    }
  }
  return all;
}

}  // namespace

MetricLog::MetricLog(comm::Group replicas, Phase phase, bool counts)
    : replicas_(std::move(replicas)), phase_(phase), counts_(counts) {}

LogOptions MetricLog::resolved(const std::string& name, const LogOptions& options) const {
  const bool plain = std::all_of(name.begin(), name.end(),
                                 [](char c) { return static_cast<unsigned char>(c) >= ' '; });
  if (name.empty() || !plain) {
    refuse_log(name, "this name", "one without control characters that is not empty");
  }
  if (options.batch_size.value_or(batch_size_) < 1) {
    refuse_log(name, fmt::format("batch_size {}", options.batch_size.value_or(batch_size_)),
               "at least 1");
  }
  if (options.rank_zero_only && options.sync_dist) {
    refuse_log(name, "rank_zero_only and sync_dist", "at most one of them",
               "rank 0 would wait for ranks that never join");
  }
  LogOptions result = options;
  result.on_step = options.on_step.value_or(phase_ == Phase::training);
  result.on_epoch = options.on_epoch.value_or(phase_ == Phase::evaluation);
  result.batch_size.reset();
  if (*result.on_step && phase_ == Phase::evaluation) {
    refuse_log(name, "on_step in evaluation", "on_epoch", "an evaluation makes one row");
  }
  if (!*result.on_step && !*result.on_epoch) {
    refuse_log(name, "neither on_step nor on_epoch", "at least one of them");
  }
  return result;
}

MetricLog::Entry& MetricLog::entry_for(const std::string& name, const LogOptions& options) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  if (found == entries_.end()) return entries_.emplace_back(Entry{name, options, {}, {}});
  if (!(found->options == options)) {
    refuse_log(name, show_options(options), show_options(found->options) + ", as before");
  }
  return *found;
}

double MetricLog::Sum::total(LogReduction reduction) const {
  if (!on_device.defined()) return *on_host;
  const double device = on_device.item<double>();
  return on_host ? reduced(reduction, *on_host, device) : device;
}

template <typename Add>
void MetricLog::add(const std::string& name, const LogOptions& options, Add add_to) {
  const LogOptions chosen = resolved(name, options);
  if (chosen.rank_zero_only && replicas_.rank() != 0) return;
  if (chosen.sync_dist && !counts_) return;
  const auto samples = static_cast<double>(options.batch_size.value_or(batch_size_));
  const std::lock_guard lock(mutex_);
  Entry& entry = entry_for(name, chosen);
  const double factor = chosen.reduce == LogReduction::mean ? samples : 1;
  for (Sum* sum :
       {*chosen.on_step ? &entry.step : nullptr, *chosen.on_epoch ? &entry.epoch : nullptr}) {
    if (!sum) continue;
    add_to(*sum, chosen.reduce, factor);
    sum->weight += samples;
  }
}

void MetricLog::log(const std::string& name, const at::Tensor& value, const LogOptions& options) {
  if (value.numel() != 1) {
    refuse_log(name, fmt::format("a tensor of {} elements", value.numel()), "one element");
  }
  if (value.is_cpu()) return log(name, value.item<double>(), options);
  const torch::NoGradGuard no_grad;
  // Copies, because the caller may overwrite its tensor.
  const at::Tensor number = value.detach().reshape({}).to(at::kDouble, /*non_blocking=*/false,
                                                          /*copy=*/true);
  add(name, options, [&](Sum& sum, LogReduction reduction, double factor) {
    const at::Tensor more = number * factor;
    const at::Tensor before =
        sum.on_device.defined() ? sum.on_device.to(more.device()) : at::Tensor();
    sum.on_device = !before.defined()                ? more
                    : reduction == LogReduction::min ? at::minimum(before, more)
                    : reduction == LogReduction::max ? at::maximum(before, more)
                                                     : before + more;
  });
}

void MetricLog::log(const std::string& name, double value, const LogOptions& options) {
  add(name, options, [&](Sum& sum, LogReduction reduction, double factor) {
    const double more = value * factor;
    sum.on_host = sum.on_host ? reduced(reduction, *sum.on_host, more) : more;
  });
}

LoggedRow MetricLog::end_interval() {
  return end_row(&Entry::step);
}

LoggedRow MetricLog::end_epoch() {
  return end_row(&Entry::epoch);
}

LoggedRow MetricLog::end_row(Sum Entry::*sum) {
  std::vector<OwnNumber> own;
  Contribution to_reduce{.has_logged = false, .shares = {}};
  for (Entry& entry : entries_) {
    Sum& held = entry.*sum;
    if (held.weight == 0) continue;
    const bool both = *entry.options.on_step && *entry.options.on_epoch;
    const std::string suffix = !both ? "" : sum == &Entry::step ? "_step" : "_epoch";
    const OwnNumber share{entry.name + suffix, entry.options.reduce, entry.options.prog_bar,
                          held.total(entry.options.reduce), held.weight};
    own.push_back(share);
    if (counts_ && !entry.options.rank_zero_only) to_reduce.has_logged = true;
    if (entry.options.sync_dist) to_reduce.shares.push_back(share);
    held = {};
  }
  const auto all = reduce_over(replicas_, to_reduce);

  LoggedRow row;
  const auto add = [&](const OwnNumber& share, bool is_common) {
    row.values.emplace_back(share.name, final_value(share));
    if (share.prog_bar) row.prog_bar.push_back(row.values.back());
    if (is_common) row.common.push_back(row.values.back());
  };
  for (const OwnNumber& share : own) {
    const OwnNumber* of_all = find_share(all, share.name);
    add(of_all ? *of_all : share, of_all || replicas_.size() == 1);
  }
  // Adds the entries that this rank lacks because it logged nothing.
  for (const OwnNumber& share : all) {
    if (!find_share(own, share.name)) add(share, true);
  }
  return row;
}

// A line for each name, separated by tabs: name, options, value and weight of both sums. Numbers
// are written so that they parse to the same bits.
at::Tensor MetricLog::state() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Entry& entry : entries_) {
    const LogOptions& o = entry.options;
    const auto value = [&](const Sum& sum) { return sum.weight > 0 ? sum.total(o.reduce) : 0; };
    text += fmt::format("{}\t{:d}\t{:d}\t{}\t{:d}\t{:d}\t{:d}\t{}\t{}\t{}\t{}\n", entry.name,
                        *o.on_step, *o.on_epoch, static_cast<int>(o.reduce), o.sync_dist,
                        o.rank_zero_only, o.prog_bar, value(entry.step), entry.step.weight,
                        value(entry.epoch), entry.epoch.weight);
  }
  const auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

void MetricLog::add_state(const at::Tensor& state) {
  const std::string text(reinterpret_cast<const char*>(state.data_ptr<uint8_t>()),
                         static_cast<size_t>(state.numel()));
  const auto lines = split(text, '\n');  // the last one is empty
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const auto cells = split(lines[i], '\t');
    const auto number = [&](size_t cell) { return parse_double(cells.at(cell)).value(); };
    const auto is = [&](size_t cell) { return cells.at(cell) == "1"; };
    const auto reduce = static_cast<LogReduction>(static_cast<int>(number(3)));
    Entry& entry = entry_for(cells.at(0), {.on_step = is(1),
                                           .on_epoch = is(2),
                                           .reduce = reduce,
                                           .sync_dist = is(4),
                                           .rank_zero_only = is(5),
                                           .prog_bar = is(6)});
    const auto add = [&](Sum& sum, double value, double weight) {
      if (weight == 0) return;
      sum.on_host = sum.on_host ? reduced(reduce, *sum.on_host, value) : value;
      sum.weight += weight;
    };
    add(entry.step, number(7), number(8));
    add(entry.epoch, number(9), number(10));
  }
}

}  // namespace troika::observe
