#include "troika/server/control.h"

#include <algorithm>
#include <random>

#include "troika/server/wire.h"

namespace troika::server {

bool is_node_name(std::string_view name) {
  return !name.empty() && std::ranges::none_of(name, [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '\x7f' || c == '@' || c == '+';
  });
}

uint64_t random_number() {
  std::random_device device;
  return ((uint64_t{device()} << 32) ^ device()) | 1;
}

std::string to_message(const Beat& beat) {
  std::string message;
  Writer writer(message);
  writer.number(beat.role);
  writer.number(beat.is_leaving);
  for (const uint64_t value :
       {beat.instance, beat.number, beat.generation, beat.bytes, beat.keys, beat.requests,
        beat.directory, beat.sent_bytes, beat.received_bytes}) {
    writer.number(value);
  }
  writer.number(beat.wanted);
  writer.number(beat.finished);
  writer.number<uint64_t>(beat.copies.size());
  for (const auto& copy : beat.copies) {
    writer.number(copy.range);
    writer.text(copy.server);
  }
  writer.number(beat.snapshot);
  writer.number(beat.committed);
  writer.number<uint64_t>(beat.saved.size());
  for (const auto& saved : beat.saved) {
    writer.number(saved.range);
    writer.text(saved.file);
    writer.number(saved.bytes);
    writer.number(saved.crc);
  }
  writer.text(beat.failure);
  writer.text(beat.map);
  writer.text(beat.addresses);
  writer.text(beat.tables);
  return message;
}

Beat parse_beat(std::string_view message) {
  Reader reader(message);
  Beat beat;
  beat.role = reader.number<uint8_t>() == 0 ? Role::server : Role::worker;
  beat.is_leaving = reader.number<uint8_t>() != 0;
  for (uint64_t* const value :
       {&beat.instance, &beat.number, &beat.generation, &beat.bytes, &beat.keys, &beat.requests,
        &beat.directory, &beat.sent_bytes, &beat.received_bytes}) {
    *value = reader.number<uint64_t>();
  }
  beat.wanted = reader.number<int64_t>();
  beat.finished = reader.number<int64_t>();
  for (auto left = reader.number<uint64_t>(); left > 0; --left) {
    const auto range = reader.number<uint32_t>();
    beat.copies.push_back({range, reader.text()});
  }
  beat.snapshot = reader.number<uint64_t>();
  beat.committed = reader.number<int64_t>();
  for (auto left = reader.number<uint64_t>(); left > 0; --left) {
    SavedRange saved{.range = reader.number<uint32_t>(), .file = reader.text()};
    saved.bytes = reader.number<uint64_t>();
    saved.crc = reader.number<uint32_t>();
    beat.saved.push_back(std::move(saved));
  }
  beat.failure = reader.text();
  beat.map = reader.text();
  beat.addresses = reader.text();
  beat.tables = reader.text();
  return beat;
}

std::string to_message(const State& state) {
  std::string message;
  Writer writer(message);
  writer.number(state.may_leave);
  writer.number(state.wants_map);
  writer.number(state.is_over);
  for (const uint64_t value :
       {state.instance, state.generation, state.worker, state.snapshot, state.directory_version}) {
    writer.number(value);
  }
  for (const int64_t value :
       {state.granted, state.committed, state.before_first, state.snapshot_step}) {
    writer.number(value);
  }
  writer.text(state.snapshot_folder);
  writer.text(state.refusal);
  writer.text(state.map);
  writer.text(state.directory);
  return message;
}

State parse_state(std::string_view message) {
  Reader reader(message);
  State state;
  state.may_leave = reader.number<uint8_t>() != 0;
  state.wants_map = reader.number<uint8_t>() != 0;
  state.is_over = reader.number<uint8_t>() != 0;
  for (uint64_t* const value : {&state.instance, &state.generation, &state.worker, &state.snapshot,
                                &state.directory_version}) {
    *value = reader.number<uint64_t>();
  }
  for (int64_t* const value :
       {&state.granted, &state.committed, &state.before_first, &state.snapshot_step}) {
    *value = reader.number<int64_t>();
  }
  state.snapshot_folder = reader.text();
  state.refusal = reader.text();
  state.map = reader.text();
  state.directory = reader.text();
  return state;
}

}  // namespace troika::server
