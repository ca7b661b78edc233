#include "troika/cli/bench/variant.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cli/bench/limit.h"
#include "troika/cluster/discovery/port.h"
#include "troika/comm/world/world.h"

namespace troika::cli::bench {

namespace {

using comm::Operation;

std::vector<comm::Group> make_worlds(const Plan& plan, cluster::Environment environment) {
  std::vector<comm::Group> groups;
  for (const std::string& backend : plan.backends) {
    // The first world keeps its port, so each further group needs another.
    if (!groups.empty()) {
      const comm::Group& first = groups.front();
      const auto port = parse_int(first.broadcast_text(
          first.rank() == 0 ? std::to_string(cluster::free_port()) : "", 0, "port"));
      TROIKA_CHECK(port, "rank 0 told a port");
      environment.master_port = static_cast<int>(*port);
    }
    groups.push_back(comm::world(environment, {.backend = backend}));
  }
  return groups;
}

std::vector<std::unique_ptr<Peer>> make_peers(const Plan& plan, const comm::Group& control) {
  std::vector<std::unique_ptr<Peer>> made;
  for (const std::string& name : plan.against) made.push_back(peer(name).make(control));
  return made;
}

struct Tensors {
  at::Tensor input, output;
};

// `make` returns a tensor with the given number of elements.
template <typename Make>
Tensors make_tensors(const Plan& plan, int64_t count, int ranks, Make&& make) {
  switch (plan.operation) {
    case Operation::reduce_scatter: {
      at::Tensor input = make(count);
      return {std::move(input), make(count / ranks)};
    }
    case Operation::all_gather: {
      at::Tensor input = make(count / ranks);
      return {std::move(input), make(count)};
    }
    default:
      return {{}, make(count)};
  }
}

void call_group(const comm::Group& group, Operation operation, comm::Algorithm algorithm,
                const at::Tensor& input, const at::Tensor& output) {
  switch (operation) {
    case Operation::reduce_scatter:
      return group.reduce_scatter(output, input).wait();
    case Operation::all_gather:
      return group.all_gather(output, input).wait();
    case Operation::broadcast:
      return group.broadcast(output).wait();
    default:
      return group.all_reduce(output, comm::ReduceOp::sum, {.algorithm = algorithm}).wait();
  }
}

class Maker {
 public:
  Maker(const Plan& plan, Setup& setup, int64_t bytes)
      : plan_(plan),
        setup_(setup),
        ranks_(setup.control().size()),
        count_(elements(plan, bytes, ranks_)) {}

  std::vector<Variant> make() {
    const Tensors ordinary = make_tensors(
        plan_, count_, ranks_, [&](int64_t count) { return at::empty({count}, plan_.type); });
    for (size_t i = 0; i < plan_.backends.size(); ++i) {
      const comm::Group& group = setup_.groups()[i];
      for (const Buffers buffers : plan_.buffers) {
        add_group(plan_.backends[i], group, buffers,
                  buffers == Buffers::ordinary ? ordinary : allocate(group));
      }
    }
    for (size_t i = 0; i < plan_.against.size(); ++i) add_peer(i, ordinary.output);
    if (plan_.zero_copy_limit) add_limit();
    return std::move(variants_);
  }

 private:
  Tensors allocate(const comm::Group& group) const {
    return make_tensors(plan_, count_, ranks_,
                        [&](int64_t count) { return group.allocate({count}, plan_.type); });
  }

  Row row(std::string backend, std::string algorithm, Buffers buffers) const {
    Row row;
    row.operation = comm::name(plan_.operation);
    row.backend = std::move(backend);
    row.algorithm = std::move(algorithm);
    row.buffers = name(buffers);
    row.dtype = plan_.dtype;
    row.ranks = ranks_;
    row.bytes = count_ * static_cast<int64_t>(c10::elementSize(plan_.type));
    return row;
  }

  void add_group(const std::string& backend, const comm::Group& group, Buffers buffers,
                 const Tensors& tensors) {
    for (const comm::Algorithm algorithm : plan_.algorithms) {
      variants_.push_back({row(backend, std::string(comm::name(algorithm)), buffers), tensors.input,
                           tensors.output, [=, operation = plan_.operation] {
                             call_group(group, operation, algorithm, tensors.input, tensors.output);
                           }});
    }
  }

  void add_peer(size_t i, const at::Tensor& tensor) {
    Peer& peer = setup_.peer(i);
    Row labels = row(std::string(bench::peer(plan_.against[i]).label), "-", Buffers::ordinary);
    labels.is_reference = true;
    labels.library = peer.version();
    variants_.push_back(
        {std::move(labels), {}, tensor, [&peer, own = tensor]() mutable { peer.all_reduce(own); }});
  }

  void add_limit() {
    const auto memory = std::make_shared<SharedMemory>(setup_.control(),
                                                       static_cast<size_t>(count_) * sizeof(float));
    std::vector<float*> parts;
    for (int rank = 0; rank < ranks_; ++rank) {
      parts.push_back(static_cast<float*>(memory->part(rank)));
    }
    const int rank = setup_.control().rank();
    const int64_t begin = slice_begin(count_, rank, ranks_);
    const int64_t end = slice_begin(count_, rank + 1, ranks_);
    Row labels = row("limit", "-", Buffers::shared);
    labels.is_reference = true;
    variants_.push_back(
        {std::move(labels),
         {},
         at::from_blob(
             parts[static_cast<size_t>(rank)], {count_}, [memory](void*) {}, at::kFloat),
         [=, &barrier = setup_.barrier(), ranks = ranks_] {
           barrier.wait();
           sum_into_all(parts.data(), ranks, begin, end);
           barrier.wait();
         }});
  }

  const Plan& plan_;
  Setup& setup_;
  const int ranks_;
  const int64_t count_;
  std::vector<Variant> variants_;
};

// scale * (i mod 13) + shift for i = first, ..., rounded once to the type. The odd period reveals
// misplaced blocks, and sums of these values over a few hundred ranks are exact in float32.
at::Tensor pattern(int64_t first, int64_t count, double scale, double shift, c10::ScalarType type) {
  constexpr int64_t kPeriod = 13;
  const at::Tensor period = (at::arange(kPeriod, at::kDouble) * scale + shift).to(type);
  return period.repeat({count / kPeriod + 2}).narrow(0, first % kPeriod, count);
}

// The input tensor of `rank`.
at::Tensor contribution(int rank, int64_t count, c10::ScalarType type) {
  return pattern(0, count, 1, rank + 1, type);
}

at::Tensor expected(const Plan& plan, int64_t count, int rank, int ranks) {
  const double shift = 0.5 * ranks * (ranks + 1);  // the sum of rank + 1
  switch (plan.operation) {
    case Operation::reduce_scatter:
      return pattern(rank * count, count, ranks, shift, plan.type);
    case Operation::all_gather: {
      std::vector<at::Tensor> blocks;
      for (int r = 0; r < ranks; ++r) {
        blocks.push_back(contribution(r, count / ranks, plan.type));
      }
      return at::cat(blocks);
    }
    case Operation::broadcast:
      return contribution(0, count, plan.type);
    default:
      return pattern(0, count, ranks, shift, plan.type);
  }
}

}  // namespace

Setup::Setup(const Plan& plan, const cluster::Environment& environment)
    : groups_(make_worlds(plan, environment)),
      peers_(make_peers(plan, control())),
      barrier_(control()) {}

std::vector<Variant> make_variants(const Plan& plan, Setup& setup, int64_t bytes) {
  return Maker(plan, setup, bytes).make();
}

void fill(const Variant& variant, const Plan& plan, int rank) {
  // Clears the output, so that the result of an earlier call is not mistaken for this one's.
  variant.output.zero_();
  const bool in_place = !variant.input.defined();
  if (in_place && plan.operation == Operation::broadcast && rank != 0) return;
  const at::Tensor& brought = in_place ? variant.output : variant.input;
  brought.copy_(contribution(rank, brought.numel(), plan.type));
}

void check(const Variant& variant, const Plan& plan, int rank, int ranks) {
  const at::Tensor& output = variant.output;
  const at::Tensor wanted = expected(plan, output.numel(), rank, ranks);
  if (at::equal(output, wanted)) return;
  const int64_t at = output.ne(wanted).nonzero()[0].item<int64_t>();
  const Row& row = variant.row;
  throw Error("bench", ErrorKind::failure,
              {.what = fmt::format("wrong result of {} by {} ({}, {} buffers) of {} bytes, element "
                                   "{} on rank {}",
                                   row.operation, row.backend, row.algorithm, row.buffers,
                                   row.bytes, at, rank),
               .got = fmt::format("{}", output[at].item<double>()),
               .expected = fmt::format("{}", wanted[at].item<double>())});
}

}  // namespace troika::cli::bench
