// A plugin for QEMU that counts the instructions a program runs from one call of getppid to the next, and prints the number to
// stderr at every second such call: a pair of calls brackets what is counted. For programs of one thread, on 64-bit ARM.
//
// The few functions that are needed are declared here, since distributions do not package QEMU's header.
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;
enum { kNoRegisters = 0, kGetppid = 173 };

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*callback)(uint64_t id, struct qemu_plugin_tb* block));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb* block, void (*callback)(unsigned cpu, void* data), int flags,
                                          void* data);
void qemu_plugin_register_vcpu_syscall_cb(uint64_t id, void (*callback)(uint64_t id, unsigned cpu, int64_t number, uint64_t,
                                                                        uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                                        uint64_t, uint64_t));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;  // of the interface, as of QEMU 4.2 to 8.1

static uint64_t count, calls;

static void executed(const unsigned cpu, void* const instructions) {
    (void)cpu;
    count += (uintptr_t)instructions;
}

static void translated(const uint64_t id, struct qemu_plugin_tb* const block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, executed, kNoRegisters, (void*)qemu_plugin_tb_n_insns(block));
}

static void called(uint64_t id, unsigned cpu, const int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                   uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number != kGetppid) return;
    if (++calls % 2 == 0) fprintf(stderr, "%llu\n", (unsigned long long)count);
    count = 0;
}

__attribute__((visibility("default"))) int qemu_plugin_install(const uint64_t id, const void* info, int argc, char** argv) {
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
