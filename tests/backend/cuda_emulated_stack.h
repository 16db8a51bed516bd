/*
 * Stacks of the emulated GPU's threads, in C++: `context_make` lets one begin with `entry` below `top`, of which at least
 * `bytes` are free; `context_switch` leaves one for another.
 */
#ifndef TESTS_BACKEND_CUDA_EMULATED_STACK_H
#define TESTS_BACKEND_CUDA_EMULATED_STACK_H

#include <stddef.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace {

#if defined __x86_64__
/* What the System V convention lets a function keep, on the stack that is left; the way back is the return address. It
 * is jumped to: a processor predicts a return to where the last call came from, which is another fiber. */
extern "C" void emulated_switch(void **from, void *to);
asm(R"(
    .text
    .globl emulated_switch
    .hidden emulated_switch
    .type emulated_switch,@function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size emulated_switch, .-emulated_switch
)");
struct context {
    void *sp;
};
inline void context_make(context *c, char *top, size_t bytes, void (*entry)())
{
    void **sp = (void **)top;
    (void)bytes;
    *--sp = nullptr; /* where a caller's return address would be: the stack is 8 off 16 at entry */
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    c->sp = sp;
}
inline void context_switch(context *from, context *to)
{
    emulated_switch(&from->sp, to->sp);
}
#else
struct context {
    ucontext_t u;
};
inline void context_make(context *c, char *top, size_t bytes, void (*entry)())
{
    getcontext(&c->u);
    c->u.uc_stack.ss_sp = top - bytes;
    c->u.uc_stack.ss_size = bytes;
    c->u.uc_link = nullptr;
    makecontext(&c->u, entry, 0);
}
inline void context_switch(context *from, context *to)
{
    swapcontext(&from->u, &to->u);
}
#endif

} // namespace

#endif
