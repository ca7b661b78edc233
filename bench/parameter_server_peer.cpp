// A process of bench/parameter_server on dmlc/ps-lite, which that script builds from ps-lite's
// sources. It has the role that ps-lite's variables say.
//
// parameter_server_peer RANGES sum|stored: a push-pull has a key for each range. The server adds
// the values, or answers with the stored ones. A worker takes commands "push_pull MEBI" on its
// standard input, and answers with seconds.
#include <ps/ps.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

// By the first key and the number of values of a message.
using Store = std::map<std::pair<ps::Key, size_t>, ps::SArray<float>>;

void serve(Store& store, bool sums, const ps::KVMeta& request, const ps::KVPairs<float>& pushed,
           ps::KVServer<float>* server) {
  auto& values = store[{pushed.keys.front(), pushed.vals.size()}];
  if (values.empty()) values.resize(pushed.vals.size(), 0);
  if (sums) {
    for (size_t i = 0; i < values.size(); ++i) values[i] += pushed.vals[i];
  }
  ps::KVPairs<float> answer;
  answer.keys = pushed.keys;
  answer.vals = values;
  server->Response(request, answer);
}

void work(size_t ranges) {
  ps::KVWorker<float> worker(0, 0);
  const auto& servers = ps::Postoffice::Get()->GetServerKeyRanges();
  ps::SArray<ps::Key> keys(ranges);
  for (size_t i = 0; i < ranges; ++i) keys[i] = servers[i * servers.size() / ranges].begin() + i;
  std::map<int, std::pair<ps::SArray<float>, ps::SArray<float>>> memory;
  std::string command;
  for (int mebi = 0; std::cin >> command >> mebi;) {
    auto& [pushed, pulled] = memory[mebi];
    const auto count = static_cast<size_t>(mebi) << 18;
    if (pushed.empty()) {
      pushed.resize(count, 1);
      pulled.resize(count, 0);
    }
    const auto begin = std::chrono::steady_clock::now();
    worker.Wait(worker.ZPushPull(keys, pushed, &pulled));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::cout << took.count() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool sums = std::strcmp(argv[2], "sum") == 0;
  ps::Start(0);
  Store store;
  if (ps::IsServer()) {
    auto* const server = new ps::KVServer<float>(0);
    server->set_request_handle(
        [&store, sums](const ps::KVMeta& request, const ps::KVPairs<float>& pushed,
                       ps::KVServer<float>* its) { serve(store, sums, request, pushed, its); });
    ps::RegisterExitCallback([server] { delete server; });
  }
  if (ps::IsWorker()) work(static_cast<size_t>(std::atoi(argv[1])));
  ps::Finalize(0, true);
  return 0;
}
