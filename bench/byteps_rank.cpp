// A rank, or another process, of bench/byteps: averages gradients by summation servers and by an
// all-reduce.
//
// byteps_rank BYTES SERVERS LINKS, with the variables of torchrun, and of a launch of SERVERS
// servers on spare machines if there are any. LINKS is that of SummationExchange. Takes commands on
// its standard input: see rank_commands.h.
#include <memory>
#include <utility>

#include "bench/rank_commands.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/comm/world/world.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/summation.h"

namespace {

using namespace troika;

// Small beside the gradients, so that servers sum nearly what the split says.
constexpr int64_t kPartition = int64_t{32} << 10;

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) return 2;
  at::set_num_threads(1);
  const layout::ServerExchange servers{.count = static_cast<int64_t>(number_of(argv[2]))};
  auto role = parallel::launched_role();
  role.protection = net::Protection::none;
  if (role.role == server::WorldRole::scheduler || role.role == server::WorldRole::server) {
    parallel::serve(role, {.method = layout::ExchangeMethod::summation, .servers = servers});
    return 0;
  }
  const auto group = comm::world(cluster::discover(), {.backend = "tcp"});
  parallel::SummationServers sums(
      group, {.servers = servers, .sums = {.partition_bytes = kPartition, .links = argv[3]}}, role);
  std::vector<parallel::Bucket> buckets(1);
  const auto& gradients = buckets[0].gradient.flat =
      at::ones({static_cast<int64_t>(number_of(argv[1])) / 4}, at::kFloat);
  sums.lay_out(buckets);
  answer_commands({{"sums",
                    [&](int times) {
                      return seconds_of_steps(group, times, [&] {
                        sums.start(buckets[0]);
                        sums.finish();
                      });
                    }},
                   {"all_reduce", [&](int times) {
                      return seconds_of_steps(group, times,
                                              [&] { group.all_reduce(gradients).wait(); });
                    }}});
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return troika::exit_code(error);
}
