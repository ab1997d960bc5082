// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	"golang.org/x/sys/unix"
	utilexec "k8s.io/utils/exec"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// Command is a command to run somewhere in the lab.
type Command struct {
	Args   []string
	Env    []string
	Dir    string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// TTY gives the command a terminal, which Stdin and Stdout are connected to. Resize carries its sizes.
	TTY    bool
	Resize <-chan api.TermSize
}

// runIn starts the command on a thread that enter has moved, and waits for it. A command that ends with another code than
// 0 gives a utilexec.CodeExitError.
func runIn(ctx context.Context, enter func() error, command Command) error {
	cmd := &exec.Cmd{Args: command.Args, Env: command.Env, Dir: command.Dir, WaitDelay: 2 * time.Second}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	terminal, err := connect(cmd, command)
	if err != nil {
		return err
	}
	err = fabric.InThread(func() error {
		if err := enter(); err != nil {
			return err
		}
		var err error
		if cmd.Path, err = lookProgram(command.Args[0], command.Env, command.Dir); err != nil {
			return utilexec.CodeExitError{Err: err, Code: 127}
		}
		return cmd.Start()
	})
	if err != nil {
		terminal.abort()
		return err
	}
	terminal.started()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ended:
		case <-ctx.Done():
			_ = cmd.Process.Kill()
		}
	}()
	err = cmd.Wait()
	terminal.wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code := exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal())
		}
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // the command ended well; a child of its holds on to its output
	}
	return err
}

// console connects a command with its caller: by a pipe for its input, or by a terminal.
type console struct {
	stdin   io.Reader
	input   *os.File // our end
	child   []*os.File
	output  io.Writer
	resize  <-chan api.TermSize
	copied  chan struct{}
	closing chan struct{}
}

// connect prepares the command's standard streams. Its input is copied by a goroutine of ours: os/exec would wait for the
// caller's input to end although the command has ended.
func connect(cmd *exec.Cmd, command Command) (*console, error) {
	c := &console{stdin: command.Stdin, closing: make(chan struct{})}
	if command.TTY {
		master, slave, err := openTerminal()
		if err != nil {
			return nil, err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr.Setctty = true
		c.input, c.child, c.output, c.resize, c.copied = master, []*os.File{slave}, command.Stdout, command.Resize, make(chan struct{})
		return c, nil
	}
	cmd.Stdout, cmd.Stderr = command.Stdout, command.Stderr
	if command.Stdin != nil {
		reader, writer, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		cmd.Stdin = reader
		c.input, c.child = writer, []*os.File{reader}
	}
	return c, nil
}

func (c *console) abort() {
	c.started()
	c.wait()
}

// started is called when the command has its own copies of the files.
func (c *console) started() {
	for _, file := range c.child {
		_ = file.Close()
	}
	if c.copied != nil {
		go func() {
			defer close(c.copied)
			if c.output != nil {
				_, _ = io.Copy(c.output, c.input) // ends with EIO when the command has gone
			}
		}()
		go c.followSize()
	}
	if c.stdin != nil {
		go func() {
			_, _ = io.Copy(c.input, c.stdin)
			if c.copied == nil {
				_ = c.input.Close()
			}
		}()
	}
}

func (c *console) followSize() {
	for {
		select {
		case <-c.closing:
			return
		case size, more := <-c.resize:
			if !more {
				return
			}
			_ = unix.IoctlSetWinsize(int(c.input.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
		}
	}
}

func (c *console) wait() {
	if c.copied != nil {
		select {
		case <-c.copied:
		case <-time.After(time.Second):
		}
	}
	close(c.closing)
	if c.input != nil {
		_ = c.input.Close()
	}
}

func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	return master, slave, nil
}

// enterContainer moves the calling thread into the process's namespaces; a child of it will be in its pid namespace too.
func (p *process) enterContainer() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	flags := unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWPID
	if err := unix.Setns(p.pidfd, flags); err != nil {
		return fmt.Errorf("enter container: %w", err)
	}
	return nil
}
