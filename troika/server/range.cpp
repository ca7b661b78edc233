#include "troika/server/range.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "troika/base/random.h"
#include "troika/net/frame.h"
#include "troika/server/control.h"
#include "troika/server/step_sum.h"
#include "troika/server/vector_kernels.h"

namespace troika::server {

namespace {

// Fewer bytes of values are copied into answers.
constexpr size_t kLeastShared = size_t{32} << 10;
// More bytes of values are a message of their own, if the worker takes it. The endpoint announces
// longer messages, so that their receiver can refuse them.
constexpr size_t kMostBeside = net::kEagerBytes;

// Returns a channel that no other answer of this process has: a worker never takes the values of
// one answer for those of another.
net::Channel next_values_channel() {
  static std::atomic<uint64_t> last{0};
  return kFirstValues + ++last;
}

}  // namespace

Range::Range(uint32_t index, uint32_t ranges, const std::vector<Table>& tables)
    : index_(index), ranges_(ranges), tables_(tables), stores_(make_stores()) {}

auto Range::make_stores() const -> std::vector<AnyStore> {
  std::vector<AnyStore> stores;
  for (const auto& table : tables_) {
    if (table.spec.type == ValueType::float32) {
      stores.emplace_back(std::in_place_type<Store<float>>, table, index_, ranges_);
    } else {
      stores.emplace_back(std::in_place_type<Store<double>>, table, index_, ranges_);
    }
  }
  return stores;
}

uint64_t Range::clock(uint64_t worker) const {
  const auto found = clocks_.find(worker);
  return found == clocks_.end() ? 0 : found->second;
}

bool Range::is_next(const RequestHead& head) const {
  const uint64_t done = clock(head.worker);
  return head.number > done && head.number <= std::max(done + 1, head.floor);
}

std::string Range::refusal(const RequestBody& body) const {
  if (body.table >= stores_.size()) return fmt::format("there is no table {}", body.table);
  if (body.operation == Operation::compute) return refusal_of_operations(body);
  return std::visit([&](const auto& store) { return store.refusal(body); }, stores_[body.table]);
}

std::string Range::refusal_of_operations(const RequestBody& body) const {
  const auto& first = tables_[body.table].spec;
  for (const auto& operation : parse_operations(body.values)) {
    for (const uint32_t table :
         {operation.x, has_second(operation.kind) ? operation.y : operation.x}) {
      if (table >= tables_.size()) return fmt::format("there is no table {}", table);
      if (const auto problem = vector_problem(first, tables_[table].spec); !problem.empty()) {
        return problem;
      }
    }
  }
  return "";
}

void Range::compute(const Request& request) {
  const auto& [head, body] = request;
  auto& numbers = numbers_[{head.worker, head.number}];
  std::visit(
      [&]<typename T>(const Store<T>&) {
        for (const auto& [kind, x, y, unused, factor] : parse_operations(body.values)) {
          auto& first = std::get<Store<T>>(stores_[x]);
          std::span<const T> second;
          // A change comes first: it may move the values, also those of a second operand that is
          // the same table.
          const std::span<T> changed = changes_first(kind) ? first.change_all() : std::span<T>();
          if (has_second(kind)) second = std::get<Store<T>>(stores_[y]).all();
          if (changes_first(kind)) {
            execute<T>(kind, changed, second, factor);
          } else {
            numbers.push_back(reduce<T>(kind, first.all(), second));
          }
        }
      },
      stores_[body.table]);
}

void Range::write(const Request& request, const Message& message) {
  const auto& [head, body] = request;
  if (body.operation == Operation::compute) return compute(request);
  const bool is_assignment = !pushes(body.operation);
  const bool waits = !is_assignment && head.step > committed_ &&
                     tables_[body.table].spec.application == Application::per_step;
  std::visit(
      [&](auto& store) {
        if (is_assignment) return store.assign(body);
        if (!waits) return store.push(body);
        store.reserve(body);
      },
      stores_[body.table]);
  if (waits) waiting_[{head.step, head.worker}].push_back(message);
}

AnswerMessage Range::read(const Request& request, const Coding& coding, bool has_kept_keys) const {
  const auto& [head, body] = request;
  Answer answer{.worker = head.worker,
                .number = head.number,
                .range = head.range,
                .has_kept_keys = has_kept_keys};
  std::string text;
  if (body.operation == Operation::compute) {
    const auto found = numbers_.find({head.worker, head.number});
    if (found != numbers_.end()) {
      answer.values = {reinterpret_cast<const char*>(found->second.data()),
                       found->second.size() * sizeof(double)};
    }
    write_answer(answer, ValueType::float64, {}, 0, text);
    return {std::make_shared<const std::string>(std::move(text))};
  }
  SharedBytes shared;
  const bool is_plain = coding.answer_values == ValueForm::plain && !coding.packs_answer;
  std::visit(
      [&]<typename T>(const Store<T>& store) {
        std::vector<uint32_t> lengths;
        const auto pulled = std::make_shared<std::vector<T>>();
        const auto stored = store.stored(body);
        if (!stored) store.pull(body, lengths, *pulled);
        std::span<const T> values = stored.value_or(*pulled);
        answer.lengths = lengths;
        const size_t size = values.size_bytes();
        if (is_plain && size >= kLeastShared) {
          // The next write copies all values that are shared, so few of them are copied now.
          const bool shares = stored && values.size() >= store.value_count() / 4;
          if (stored && !shares) pulled->assign(values.begin(), values.end());
          if (!shares) values = *pulled;
          if (head.takes_values_apart && size > kMostBeside) answer.apart = next_values_channel();
          write_answer_head(answer, size, text);
          shared.bytes = {reinterpret_cast<const char*>(values.data()), size};
          shared.owner = shares ? store.owner() : pulled;
          return;
        }
        answer.values = {reinterpret_cast<const char*>(values.data()), size};
        write_answer(answer, tables_[body.table].spec.type, coding, mix(head.worker, head.number),
                     text);
      },
      stores_[body.table]);
  return {std::make_shared<const std::string>(std::move(text)), std::move(shared), answer.apart};
}

void Range::advance(const RequestHead& head) {
  clocks_[head.worker] = head.number;
  numbers_.erase(numbers_.lower_bound({head.worker, 0}),
                 numbers_.lower_bound({head.worker, std::min(head.floor, head.number)}));
}

template <typename T>
void Range::apply_sums(Store<T>& store, uint32_t table, int64_t step, const Departed& departed) {
  StepSum<T> sum(tables_[table].spec);
  bool has_push = false;
  std::optional<double> rate;  // of the first push
  const auto end = waiting_.lower_bound({step + 1, 0});
  for (auto entry = waiting_.lower_bound({step, 0}); entry != end; ++entry) {
    const auto left = departed.find(entry->first.second);
    if (left != departed.end() && left->second < step) continue;
    for (const auto& message : entry->second) {
      const auto body = parse_request(*message).body;
      if (body.table != table) continue;
      sum.add(body);
      if (!has_push) rate = body.rate;
      has_push = true;
    }
  }
  if (!has_push) return;
  auto push = sum.push();
  push.rate = rate;
  store.push(push);
}

void Range::commit(int64_t step, const Departed& departed) {
  if (step <= committed_) return;
  committed_ = step;
  while (!waiting_.empty() && waiting_.begin()->first.first <= step) {
    const int64_t first = waiting_.begin()->first.first;
    for (uint32_t table = 0; table < tables_.size(); ++table) {
      std::visit([&](auto& store) { apply_sums(store, table, first, departed); }, stores_[table]);
    }
    waiting_.erase(waiting_.begin(), waiting_.lower_bound({first + 1, 0}));
  }
}

size_t Range::bytes() const {
  size_t bytes = 0;
  for (const auto& any : stores_) {
    bytes += std::visit([](const auto& store) { return store.bytes(); }, any);
  }
  for (const auto& [key, messages] : waiting_) {
    for (const auto& message : messages) bytes += message->size();
  }
  return bytes;
}

uint64_t Range::keys() const {
  uint64_t keys = 0;
  for (const auto& any : stores_) {
    keys += std::visit([](const auto& store) { return store.keys(); }, any);
  }
  return keys;
}

std::string Range::save() const {
  std::string copy;
  Writer writer(copy);
  writer.number<uint64_t>(index_);
  writer.number<uint64_t>(ranges_);
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    writer.text(to_text(tables_[table].spec));
    std::visit([&](const auto& store) { store.save(writer); }, stores_[table]);
  }
  writer.number(committed_);
  writer.number<uint64_t>(clocks_.size());
  for (const auto& [worker, number] : clocks_) {
    writer.number(worker);
    writer.number(number);
  }
  writer.number<uint64_t>(waiting_.size());
  for (const auto& [step_and_worker, messages] : waiting_) {
    writer.number(step_and_worker.first);
    writer.number(step_and_worker.second);
    writer.number<uint64_t>(messages.size());
    for (const auto& message : messages) writer.text(*message);
  }
  writer.number<uint64_t>(numbers_.size());
  for (const auto& [worker_and_request, numbers] : numbers_) {
    writer.number(worker_and_request.first);
    writer.number(worker_and_request.second);
    writer.array(std::span<const double>(numbers));
  }
  return copy;
}

void Range::forget_workers() {
  clocks_.clear();
  waiting_.clear();
  numbers_.clear();
}

void Range::load(std::string_view copy) {
  Reader reader(copy);
  const auto expect = [&](const std::string& got, const std::string& expected) {
    if (got == expected) return;
    throw Error("server", ErrorKind::failure,
                {.what = fmt::format("a copy is not of range {}", index_),
                 .got = got,
                 .expected = expected});
  };
  expect(fmt::format("range {}", reader.number<uint64_t>()), fmt::format("range {}", index_));
  expect(fmt::format("{} ranges", reader.number<uint64_t>()), fmt::format("{} ranges", ranges_));
  auto stores = make_stores();
  for (uint32_t table = 0; table < tables_.size(); ++table) {
    expect(reader.text(), to_text(tables_[table].spec));
    std::visit([&](auto& store) { store.load(reader); }, stores[table]);
  }
  const auto committed = reader.number<int64_t>();
  check_step(committed);
  decltype(clocks_) clocks;
  decltype(waiting_) waiting;
  decltype(numbers_) numbers;
  for (auto left = reader.number<uint64_t>(); left > 0; --left) {
    const auto worker = reader.number<uint64_t>();
    clocks[worker] = reader.number<uint64_t>();
  }
  for (auto left = reader.number<uint64_t>(); left > 0; --left) {
    const auto step = reader.number<int64_t>();
    check_step(step);
    auto& messages = waiting[{step, reader.number<uint64_t>()}];
    for (auto count = reader.number<uint64_t>(); count > 0; --count) {
      messages.push_back(std::make_shared<const std::string>(reader.text()));
      const auto body = parse_request(*messages.back()).body;
      const bool fits =
          body.table < stores.size() &&
          std::visit([&](const auto& s) { return s.refusal(body); }, stores[body.table]).empty();
      if (!fits) expect("a write that does not fit its table", "one that does");
    }
  }
  // Snapshots from before there were vector operations end here.
  for (auto left = reader.is_over() ? 0 : reader.number<uint64_t>(); left > 0; --left) {
    const auto worker = reader.number<uint64_t>();
    const auto number = reader.number<uint64_t>();
    const auto saved = reader.array<double>();
    numbers[{worker, number}].assign(saved.begin(), saved.end());
  }
  stores_ = std::move(stores);
  committed_ = committed;
  clocks_ = std::move(clocks);
  waiting_ = std::move(waiting);
  numbers_ = std::move(numbers);
}

}  // namespace troika::server
